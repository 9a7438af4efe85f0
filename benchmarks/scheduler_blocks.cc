// How many blocks a second the scheduler hands out, to readers whose sources answer at once.
//
//     scheduler_blocks READERS ITEMS LIMIT_BYTES
//
// One item is one block. Prints blocks per second, and how long readers were inside finish(), in
// microseconds: the wait for the lock, and for the processor.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "schedule/scheduler.h"

using namespace streamer;

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
    for (const std::uint32_t item : delivery.items) scheduler.take_item(item);
    is_finished = delivery.is_finished;
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::vector<float> all;
  for (const auto& own : times) all.insert(all.end(), own.begin(), own.end());
  std::sort(all.begin(), all.end());
  std::printf("%.0f blocks/s, finish: median %.1f us, 99.9 %%: %.1f us\n", count / seconds,
              static_cast<double>(all[all.size() / 2]),
              static_cast<double>(all[all.size() * 999 / 1000]));
}
