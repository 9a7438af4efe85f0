// How many blocks a second the scheduler hands out, to readers whose sources answer at once.
//
//     scheduler_blocks READERS ITEMS LIMIT_BYTES
//
// One item is one block. Prints blocks per second; how long readers were inside finish(), in
// microseconds: the wait for the lock, and for the processor; and how long locks of the scheduler
// were held, without the time to ask the clock, which slows everything down.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "held_locks.h"
#include "schedule/scheduler.h"

using namespace streamer;

namespace {

double percentile(std::vector<float>& values, double share) {
  std::sort(values.begin(), values.end());
  return static_cast<double>(
      values[static_cast<std::size_t>(share * static_cast<double>(values.size()))]);
}

double sum(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// How long a lock seems to be held in which nothing is done: what it takes to ask the clock.
double clock_us() {
  constexpr std::size_t kTimes = 100'000;
  std::mutex nobodys;
  held_locks::watched_begin = reinterpret_cast<const char*>(&nobodys);
  held_locks::watched_end = held_locks::watched_begin + sizeof(nobodys);
  std::vector<float>& own = held_locks::own.us;
  own.clear();
  for (std::size_t i = 0; i < kTimes; ++i) const std::lock_guard lock(nobodys);
  return sum(own) / kTimes;
}

}  // namespace

int main(int, char** arguments) {
  const int readers = std::atoi(arguments[1]);
  const auto count = static_cast<std::uint32_t>(std::atoi(arguments[2]));
  const auto limit = static_cast<std::uint64_t>(std::atoll(arguments[3]));
  constexpr std::uint64_t kBytes = 4096;
  Plan plan;
  for (std::uint32_t i = 0; i < count; ++i) plan.items.push_back({0, i * kBytes, (i + 1) * kBytes});
  plan.spans.push_back({0, 0, count * kBytes, 0, count});
  Scheduler scheduler(std::move(plan), {Lane::kFile},
                      {.block_bytes = {kBytes, kBytes, kBytes}, .memory_limit_bytes = limit});
  held_locks::watched_begin = reinterpret_cast<const char*>(&scheduler);
  held_locks::watched_end = held_locks::watched_begin + sizeof(scheduler);
  std::vector<std::vector<float>> times(static_cast<std::size_t>(readers));
  const auto began = Clock::now();
  std::vector<std::thread> threads;
  for (auto& own : times) {
    own.reserve(count);
    threads.emplace_back([&] {
      while (auto block = scheduler.take(Lane::kFile)) {
        const auto before = Clock::now();
        scheduler.finish(Lane::kFile, std::move(*block));
        own.push_back(std::chrono::duration<float, std::micro>(Clock::now() - before).count());
      }
    });
  }
  for (bool is_finished = false; !is_finished;) {
    const Delivery delivery = scheduler.wait(5);
    scheduler.take_items(delivery.items);
    is_finished = delivery.is_finished;
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::vector<float> all;
  for (const auto& own : times) all.insert(all.end(), own.begin(), own.end());
  std::vector<float> held = held_locks::all_us;
  held.insert(held.end(), held_locks::own.us.begin(), held_locks::own.us.end());  // this thread's
  const double held_us = sum(held) - static_cast<double>(held.size()) * clock_us();
  std::printf("%.0f blocks/s, finish: median %.1f us, 99.9 %%: %.1f us", count / seconds,
              percentile(all, 0.5), percentile(all, 0.999));
  std::printf("; locks held: 99.9 %%: %.1f us, %.2f us for each block", percentile(held, 0.999),
              held_us / count);
  std::printf(", at 300000 blocks/s %.1f %% of the processors\n",
              100 * 0.3 * held_us / count / std::thread::hardware_concurrency());
}
