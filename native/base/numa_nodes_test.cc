#include "base/numa_nodes.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "base/fake_system_fixture.h"

namespace streamer {
namespace {

using Numbers = std::set<unsigned>;

constexpr const char* kAddress = "0000:3b:00.0";

TEST_CASE("a list contains numbers and ranges") {
  const struct {
    const char* text;
    Numbers numbers;
  } rows[] = {
      {"", {}},
      {"0", {0}},
      {"0-3", {0, 1, 2, 3}},
      {"0-1,8-9", {0, 1, 8, 9}},
      {"3,1,2", {1, 2, 3}},
      {"1,1-2", {1, 2}},
      {"7-7", {7}},
      {"8191", {8191}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    CHECK(parse_number_list(row.text) == row.numbers);
  }
}

TEST_CASE("a list in any other form is refused") {
  for (const char* text :
       {" ", "a", "0-", "-1", "0--1", "3-1", "0,", ",0", "0,,1", "0 1", "0\n", "0-3:1/2", "0x1",
        "+1", "8192", "0-4294967295", "4294967296", "0-1-2", "0,a"}) {
    CAPTURE(text);
    CHECK(!parse_number_list(text));
  }
}

TEST_CASE("any set of numbers is parsed from its list") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Numbers numbers;
    std::string text;
    unsigned next = 0;
    for (unsigned ranges = random() % 8; ranges > 0; --ranges) {
      const unsigned first = next + 1 + static_cast<unsigned>(random() % 50);
      const unsigned last = first + static_cast<unsigned>(random() % 50);
      for (unsigned number = first; number <= last; ++number) numbers.insert(number);
      if (!text.empty()) text += ",";
      text += std::to_string(first) + "-" + std::to_string(last);
      next = last;
    }
    CAPTURE(text);
    CHECK(parse_number_list(text) == numbers);
  }
}

TEST_CASE("a node has the processors of its list, and a node with only memory has none") {
  FakeSystem system;
  system.set_online("0-1,4\n");
  system.set_processors(0, "0-1,4-5\n");
  system.set_processors(1, "2-3,6-7\n");
  system.set_processors(4, "\n");
  const NumaNodes nodes = read_numa_nodes(system.root());
  CHECK(nodes == NumaNodes{{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}, {4, {}}});
}

TEST_CASE("no node is known if one of the files is absent or malformed") {
  FakeSystem system;
  CHECK(read_numa_nodes(system.root()).empty());
  system.set_online("0-1\n");
  system.set_processors(0, "0-1\n");
  CHECK(read_numa_nodes(system.root()).empty());
  system.set_processors(1, "two and three\n");
  CHECK(read_numa_nodes(system.root()).empty());
  system.set_processors(1, "2-3\n");
  CHECK(read_numa_nodes(system.root()).size() == 2);
  system.set_online("0-1\n2\n");
  CHECK(read_numa_nodes(system.root()).empty());
}

TEST_CASE("a device is on the node that its file names") {
  const struct {
    const char* text;
    std::optional<unsigned> node;
  } rows[] = {
      {"0\n", 0},
      {"1\n", 1},
      {"-1\n", std::nullopt},  // the kernel does not know the node
      {"", std::nullopt},
      {"one\n", std::nullopt},
      {"1 \n", std::nullopt},
      {"99999999999\n", std::nullopt},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    FakeSystem system;
    system.set_node_of_device(kAddress, row.text);
    CHECK(numa_node_of_pci_device(system.root(), kAddress) == row.node);
  }
}

TEST_CASE("the node of a device without a file or an address is not known") {
  const FakeSystem system;
  CHECK(!numa_node_of_pci_device(system.root(), kAddress));
  CHECK(!numa_node_of_pci_device(system.root(), ""));
}

TEST_CASE("devices have a common node if each of them is known to be on it") {
  const struct {
    std::vector<std::optional<unsigned>> nodes;
    std::optional<unsigned> common;
  } rows[] = {
      {{}, {}},        {{1}, 1},      {{1, 1, 1}, 1}, {{0, 1}, {}},
      {{1, 1, 0}, {}}, {{1, {}}, {}}, {{{}, 1}, {}},  {{std::nullopt, std::nullopt}, {}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.nodes.size());
    CHECK(common_node(row.nodes) == row.common);
  }
}

}  // namespace
}  // namespace streamer
