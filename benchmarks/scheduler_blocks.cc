// Measures how many blocks per second the scheduler hands out to readers whose sources answer at
// once.
//
//     scheduler_blocks READERS ITEMS LIMIT_BYTES [LARGEST_BYTES]
//
// Items have 4 KiB, and each item is one block. With LARGEST_BYTES, items have different sizes up
// to LARGEST_BYTES, in blocks of 8 MiB whose pages the readers touch. The consumer drops finished
// items. Prints three figures: blocks per second; the microseconds that readers spent in finish(),
// which include waiting for the lock and for the processor; and how long locks of the scheduler
// were held. The last figure excludes the calls of the clock, which slow everything down.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "held_locks.h"
#include "schedule/scheduler.h"

using namespace streamer;

namespace {

double percentile(std::vector<float>& values, double share) {
  std::sort(values.begin(), values.end());
  const auto place = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return static_cast<double>(values[std::min(place, values.size() - 1)]);
}

double sum(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Returns how long an empty critical section seems to hold its lock: the time to call the clock.
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

constexpr std::uint64_t kSmallBytes = 4096;
constexpr std::uint64_t kLargeBlockBytes = 8 << 20;

// Sizes from half of the largest size to all of it, so that few items fit into the space that one
// leaves.
std::uint64_t size_of(std::uint32_t item, std::uint32_t count, std::uint64_t largest) {
  if (largest == 0) return kSmallBytes;
  const std::uint64_t shuffled = std::uint64_t{item} * 7919 % count;
  return (largest / 2 + largest / 2 * shuffled / count) / kSmallBytes * kSmallBytes;
}

void touch(const Block& block) {
  for (const Segment& segment : block.destinations) {
    for (std::uint64_t i = 0; i < segment.size; i += kSmallBytes) segment.target[i] = std::byte{1};
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  const int readers = std::atoi(arguments[1]);
  const auto count = static_cast<std::uint32_t>(std::atoi(arguments[2]));
  const auto limit = static_cast<std::uint64_t>(std::atoll(arguments[3]));
  const std::uint64_t largest = argument_count > 4 ? std::strtoull(arguments[4], nullptr, 10) : 0;
  const std::uint64_t block_bytes = largest > 0 ? kLargeBlockBytes : kSmallBytes;
  Plan plan;
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t begin = std::exchange(end, end + size_of(i, count, largest));
    plan.items.push_back({0, begin, end});
  }
  plan.spans.push_back({0, 0, end, 0, count});
  Scheduler scheduler(
      std::move(plan), {Lane::kFile},
      {.block_bytes = {block_bytes, block_bytes, block_bytes}, .memory_limit_bytes = limit});
  held_locks::watched_begin = reinterpret_cast<const char*>(&scheduler);
  held_locks::watched_end = held_locks::watched_begin + sizeof(scheduler);
  std::vector<std::vector<float>> times(static_cast<std::size_t>(readers));
  const auto began = Clock::now();
  std::vector<std::thread> threads;
  for (auto& own : times) {
    own.reserve(count);
    threads.emplace_back([&] {
      while (auto block = scheduler.take(Lane::kFile)) {
        if (largest > 0) touch(*block);
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
  held.insert(held.end(), held_locks::own.us.begin(), held_locks::own.us.end());  // of this thread
  const double held_us = sum(held) - static_cast<double>(held.size()) * clock_us();
  std::printf("%.0f blocks/s, finish: median %.1f us, 99.9 %%: %.1f us", count / seconds,
              percentile(all, 0.5), percentile(all, 0.999));
  std::printf("; locks held: 99.9 %%: %.1f us, %.2f us for each block", percentile(held, 0.999),
              held_us / count);
  if (largest > 0) {
    std::printf(", longest %.0f us, all together %.1f %% of the time\n", percentile(held, 1),
                held_us / seconds / 1e4);
  } else {
    std::printf(", at 300000 blocks/s %.1f %% of the processors\n",
                100 * 0.3 * held_us / count / std::thread::hardware_concurrency());
  }
}
