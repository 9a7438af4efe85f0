// Tests on which processors the threads of a load may run. A fake /sys divides the processors of
// the machine into two nodes.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/fake_system_fixture.h"
#include "base/numa_nodes.h"
#include "session/device_session_fixture.h"

namespace streamer {
namespace {

// The names of the fake driver's devices under /sys.
constexpr const char* kFirstDevice = "fake:00:00.0";
constexpr const char* kSecondDevice = "fake:01:00.0";

// Returns the name of the program, which is also the name of its first thread. If an emulator runs
// the tests, this is the name of the emulator.
std::string name_of_program() {
  std::string name;
  std::ifstream("/proc/self/comm") >> name;
  return name;
}

// Returns the processors on which each thread of this process may run, by the name of the thread.
// The first entry of "status" is this name.
std::map<std::string, Processors> masks_of_threads() {
  std::map<std::string, Processors> masks;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string name;
    std::string word;
    std::string list;
    status >> word >> name;
    while (status >> word && word != "Cpus_allowed_list:") {
    }
    if (status >> list) masks[name] = parse_number_list(list).value_or(Processors());
  }
  return masks;
}

// Divides the processors that the tests may use into two nodes: the first one is node 0, and the
// others are node 1.
class DividedMachine {
 public:
  DividedMachine() {
    all = masks_of_threads()[name_of_program()];
    for (const unsigned processor : all) nodes[processor == *all.begin() ? 0 : 1].insert(processor);
    system.set_online("0-1\n");
    for (const auto& [node, processors] : nodes) {
      std::string list;
      for (const unsigned processor : processors) {
        if (!list.empty()) list += ",";
        list += std::to_string(processor);
      }
      system.set_processors(node, list + "\n");
    }
  }

  // With only one processor, the tests prove nothing.
  bool is_divided() const { return nodes.size() == 2; }

  // The memory is small, so the readers wait until the consumer takes the finished items.
  SessionOptions options() const {
    SessionOptions options = options_with(1 << 20, 1);
    options.file_threads = 1;
    options.http_reactors = 1;
    options.system_root = system.root();
    return options;
  }

  FakeSystem system;
  NumaNodes nodes;
  Processors all;
};

// Returns a plan of two objects of `size` bytes, each for its device.
Plan plan_of_two(std::uint64_t size, std::int32_t first, std::int32_t second) {
  Plan plan = plan_of(size, first);
  const Plan others = plan_of(size, second, 1);
  const auto count = static_cast<std::uint32_t>(plan.items.size());
  plan.items.insert(plan.items.end(), others.items.begin(), others.items.end());
  plan.spans.push_back({1, 0, size, count, count});
  return plan;
}

// Starts a load of two files, one for device 0 and one for `second`. Returns the processors that
// each thread may use when an item of the second file has been delivered.
std::map<std::string, Processors> masks_of_load(const FakeDriver& fake,
                                                const SessionOptions& options,
                                                std::int32_t second) {
  // Makes the driver hide which device a target is on.
  fake.fail("cuPointerGetAttribute", kCudaInvalidValue, 0);
  const std::string data = random_data(1'000'000, 1);
  const TemporaryFile file(data);
  Session session(options);
  session.add_file(file.path(), data.size(), "");
  session.add_file(file.path(), data.size(), "");
  const Plan plan = plan_of_two(data.size(), 0, second);
  Consumer consumer(session, plan);
  session.start(plan);
  const auto is_of_second = [&plan](std::uint32_t item) { return plan.items[item].source == 1; };
  while (std::ranges::none_of(consumer.delivered, is_of_second)) REQUIRE(consumer.look());
  return masks_of_threads();
}

TEST_CASE("a reader into memory stays on one node, and its consumer keeps all its processors") {
  const DividedMachine machine;
  if (!machine.is_divided()) return;
  const std::string data = random_data(1'000'000, 1);
  const TemporaryFile file(data);
  const LoopbackServer server(data);
  for (const char* reader : {"streamer-file0", "streamer-http0"}) {
    CAPTURE(reader);
    Session session(machine.options());
    if (reader == std::string("streamer-file0")) {
      session.add_file(file.path(), data.size(), "");
    } else {
      session.add_http(target_of(server), data.size(), "", "ETag", false);
    }
    session.start(plan_of(data.size(), kHost));
    CHECK(!session.wait(30).error);
    auto masks = masks_of_threads();
    CHECK((masks[reader] == machine.nodes.at(0) || masks[reader] == machine.nodes.at(1)));
    CHECK(masks[name_of_program()] == machine.all);
  }
}

TEST_CASE("if devices share a node, their readers and copiers run on that node") {
  DividedMachine machine;
  if (!machine.is_divided()) return;
  for (const unsigned node : {0U, 1U}) {
    CAPTURE(node);
    const FakeDriver fake;
    machine.system.set_node_of_device(kFirstDevice, std::to_string(node) + "\n");
    machine.system.set_node_of_device(kSecondDevice, std::to_string(node) + "\n");
    auto masks = masks_of_load(fake, machine.options(), 1);
    for (const char* thread : {"streamer-file0", "streamer-gpu0", "streamer-gpu1"}) {
      CAPTURE(thread);
      CHECK(masks[thread] == machine.nodes.at(node));
    }
  }
}

TEST_CASE("if devices are on different nodes, each copier is on its device's node") {
  DividedMachine machine;
  if (!machine.is_divided()) return;
  const FakeDriver fake;
  machine.system.set_node_of_device(kFirstDevice, "1\n");
  machine.system.set_node_of_device(kSecondDevice, "0\n");
  auto masks = masks_of_load(fake, machine.options(), 1);
  CHECK(masks["streamer-gpu0"] == machine.nodes.at(1));
  CHECK(masks["streamer-gpu1"] == machine.nodes.at(0));
  const Processors& reader = masks["streamer-file0"];
  CHECK((reader == machine.nodes.at(0) || reader == machine.nodes.at(1)));
}

TEST_CASE(
    "if the driver does not report the place of a device, its threads stay where they first run") {
  DividedMachine machine;
  if (!machine.is_divided()) return;
  const FakeDriver fake;
  fake.fail("cuDeviceGetPCIBusId", kCudaNotSupported, 0);
  machine.system.set_node_of_device(kFirstDevice, "1\n");
  auto masks = masks_of_load(fake, machine.options(), 0);
  for (const char* thread : {"streamer-file0", "streamer-gpu0"}) {
    const Processors& mask = masks[thread];
    CHECK((mask == machine.nodes.at(0) || mask == machine.nodes.at(1)));
  }
}

TEST_CASE("no thread is bound if the nodes are not known") {
  DividedMachine machine;
  const FakeDriver fake;
  machine.system.set_online("neither\n");
  machine.system.set_node_of_device(kFirstDevice, "1\n");
  auto masks = masks_of_load(fake, machine.options(), 0);
  for (const char* thread : {"streamer-file0", "streamer-gpu0"}) {
    CHECK(masks[thread] == machine.all);
  }
}

}  // namespace
}  // namespace streamer
