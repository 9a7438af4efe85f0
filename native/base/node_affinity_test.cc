#include "base/node_affinity.h"

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>

#include "base/engine_thread.h"

namespace streamer {
namespace {

const NumaNodes kOneNode{{0, {0, 1, 2, 3}}};
const NumaNodes kTwoNodes{{0, {0, 1}}, {1, {2, 3}}};
const NumaNodes kWithMemoryAlone{{0, {0, 1, 2, 3}}, {1, {}}};
const Processors kAll{0, 1, 2, 3};

TEST_CASE("a thread keeps the processors of one node, and only those it may use") {
  const struct {
    const char* name;
    const NumaNodes& nodes;
    Processors allowed;
    std::optional<unsigned> here;
    std::optional<unsigned> wanted;
    Processors left;
  } rows[] = {
      {"the node of the current processor", kTwoNodes, kAll, 0, {}, {0, 1}},
      {"the node of the current processor, the other one", kTwoNodes, kAll, 3, {}, {2, 3}},
      {"the wanted node", kTwoNodes, kAll, 0, 1, {2, 3}},
      {"already on the wanted node", kTwoNodes, kAll, 2, 1, {2, 3}},
      {"only the allowed processors of the current node", kTwoNodes, {1, 2}, 1, {}, {1}},
      {"only the allowed processors of the wanted node", kTwoNodes, {1, 2}, 1, 1, {2}},
      {"a wanted node without allowed processors is ignored", kTwoNodes, {0, 1}, 0, 1, {}},
      {"a wanted node that does not exist is ignored", kTwoNodes, kAll, 0, 7, {0, 1}},
      {"a machine with one node", kOneNode, kAll, 0, {}, {}},
      {"a machine with one node, which is wanted", kOneNode, kAll, 0, 0, {}},
      {"the other node has no processors", kWithMemoryAlone, kAll, 0, {}, {}},
      {"a wanted node without processors", kWithMemoryAlone, kAll, 0, 1, {}},
      {"a mask within one node", kTwoNodes, {2, 3}, 2, {}, {}},
      {"the nodes are not known", {}, kAll, 0, 0, {}},
      {"the mask is not known", kTwoNodes, {}, 0, 0, {}},
      {"the current processor is not known", kTwoNodes, kAll, {}, {}, {}},
      {"the current processor is on no node", kTwoNodes, kAll, 9, {}, {}},
      {"the current processor is not known, and a node is wanted", kTwoNodes, kAll, {}, 1, {2, 3}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    CHECK(processors_of_one_node(row.nodes, row.allowed, row.here, row.wanted) == row.left);
  }
}

// The processors that the calling thread may use.
Processors mask() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  Processors processors;
  for (unsigned processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.insert(processor);
  }
  return processors;
}

// Returns two nodes: the first of these processors, and the others.
NumaNodes divided(const Processors& processors) {
  return {{0, {*processors.begin()}},
          {1, Processors(std::next(processors.begin()), processors.end())}};
}

Processors mask_of_thread_on(const NumaNodes& nodes, std::optional<unsigned> wanted) {
  Processors left;
  start_engine_thread("test", 0, [&] {
    stay_on_one_node(nodes, wanted);
    left = mask();
  }).join();
  return left;
}

TEST_CASE("a thread is bound to the wanted node, and the thread that started it is not") {
  const Processors before = mask();
  if (before.size() < 2) return;  // one processor cannot be divided into two nodes
  const NumaNodes nodes = divided(before);
  CHECK(mask_of_thread_on(nodes, 0) == nodes.at(0));
  CHECK(mask_of_thread_on(nodes, 1) == nodes.at(1));
  CHECK(mask() == before);
}

TEST_CASE("a thread without a wanted node is also bound to one node") {
  const Processors before = mask();
  if (before.size() < 2) return;
  const NumaNodes nodes = divided(before);
  const Processors left = mask_of_thread_on(nodes, {});
  CHECK((left == nodes.at(0) || left == nodes.at(1)));
}

TEST_CASE("a mask that was narrowed is never widened") {
  const Processors before = mask();
  if (before.size() < 2) return;
  const NumaNodes nodes = divided(before);
  start_engine_thread("test", 0, [&] {
    stay_on_one_node(nodes, 0);
    stay_on_one_node(nodes, 1);
    CHECK(mask() == nodes.at(0));
  }).join();
}

// Makes the system refuse to change the mask of the calling thread, as a sandbox may. Returns false
// if the filter cannot be installed.
bool forbid_new_masks() {
  std::array<sock_filter, 4> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_sched_setaffinity},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{program.size(), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_CASE("a thread keeps its processors if the system refuses to bind it") {
  const Processors before = mask();
  if (before.size() < 2) return;
  start_engine_thread("test", 0, [&] {
    if (!forbid_new_masks()) return;
    stay_on_one_node(divided(before), 0);
    CHECK(mask() == before);
  }).join();
}

}  // namespace
}  // namespace streamer
