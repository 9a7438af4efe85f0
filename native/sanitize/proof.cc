// Commits a fault that the named sanitizer must catch, so that an inactive sanitizer is detected.
//
//   proof address | undefined | thread
#include <atomic>
#include <climits>
#include <cstring>
#include <thread>

namespace {

int shared_without_a_lock = 0;

int use_after_free(int index) {
  int* const numbers = new int[4]{};
  delete[] numbers;
  return numbers[index];
}

int overflow(int number) { return INT_MAX + number; }

// The second increment runs after the first, without synchronization between them. If both ran at
// the same instant, the sanitizer might miss the race.
int race() {
  std::atomic<bool> is_incremented = false;
  std::thread other([&] {
    while (!is_incremented.load(std::memory_order_relaxed)) std::this_thread::yield();
    ++shared_without_a_lock;
  });
  ++shared_without_a_lock;
  is_incremented.store(true, std::memory_order_relaxed);
  other.join();
  return shared_without_a_lock;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  if (std::strcmp(arguments[1], "address") == 0) return use_after_free(count) & 1;
  if (std::strcmp(arguments[1], "undefined") == 0) return overflow(count) & 1;
  if (std::strcmp(arguments[1], "thread") == 0) return race() & 1;
  return 2;
}
