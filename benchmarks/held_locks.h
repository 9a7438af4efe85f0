// Measures how long the mutexes of one object are held. A program that includes this file once gets
// its own pthread_mutex_lock() and similar functions, which call the clock and then the real ones.
//
// Only mutexes at addresses between watched_begin and watched_end are measured. Time in which the
// holder of a mutex does not run counts, too, because the other threads wait then as well.
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

namespace held_locks {

inline const char* watched_begin = nullptr;
inline const char* watched_end = nullptr;
inline std::mutex all_mutex;
inline std::vector<float> all_us;

struct Own {
  std::vector<float> us;
  std::chrono::steady_clock::time_point since;

  ~Own() {
    const std::lock_guard lock(all_mutex);
    all_us.insert(all_us.end(), us.begin(), us.end());
  }
};
inline thread_local Own own;

inline bool is_watched(const void* mutex) {
  const auto* const place = static_cast<const char*>(mutex);
  return place >= watched_begin && place < watched_end;
}

inline void begin(const void* mutex) {
  if (is_watched(mutex)) own.since = std::chrono::steady_clock::now();
}

inline void end(const void* mutex) {
  if (!is_watched(mutex)) return;
  const std::chrono::duration<float, std::micro> held =
      std::chrono::steady_clock::now() - own.since;
  own.us.push_back(held.count());
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace held_locks

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto lock = held_locks::real<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  const int result = lock(mutex);
  held_locks::begin(mutex);
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto unlock = held_locks::real<int (*)(pthread_mutex_t*)>("pthread_mutex_unlock");
  held_locks::end(mutex);
  return unlock(mutex);
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto wait =
      held_locks::real<int (*)(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  held_locks::end(mutex);
  const int result = wait(condition, mutex);
  held_locks::begin(mutex);
  return result;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto wait = held_locks::real<Wait>("pthread_cond_clockwait");
  held_locks::end(mutex);
  const int result = wait(condition, mutex, clock, until);
  held_locks::begin(mutex);
  return result;
}

}  // extern "C"
