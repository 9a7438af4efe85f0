#include "plan/plan.h"

#include <doctest/doctest.h>

#include <stdexcept>

namespace streamer {
namespace {

Plan good_plan() { return {{{0, 8, 16}, {0, 16, 16}, {0, 20, 30}}, {{0, 8, 30, 0, 3}}}; }

TEST_CASE("a plan whose spans hold their items in order is accepted") {
  CHECK_NOTHROW(check_plan(good_plan(), 1));
  CHECK_NOTHROW(check_plan(Plan{}, 0));
  Plan with_runs = good_plan();
  with_runs.items[0].run = 2, with_runs.items[0].stride = 6;
  CHECK_NOTHROW(check_plan(with_runs, 1));
  Plan held_back = good_plan();
  held_back.spans.clear(), held_back.held_back = {2, 0};
  CHECK_NOTHROW(check_plan(held_back, 1));
}

TEST_CASE("a plan that breaks a rule of the engine is refused") {
  const auto is_refused = [](auto change) {
    Plan plan = good_plan();
    change(plan);
    CHECK_THROWS_AS(check_plan(plan, 1), std::invalid_argument);
  };
  is_refused([](Plan& plan) { plan.spans[0].source = 1; });
  is_refused([](Plan& plan) { plan.spans[0].end = plan.spans[0].begin; });
  is_refused([](Plan& plan) { plan.spans[0].item_count = 4; });
  is_refused([](Plan& plan) { plan.spans[0].first_item = UINT32_MAX; });
  is_refused([](Plan& plan) { plan.items[2].begin = 15; });
  is_refused([](Plan& plan) { plan.items[2].end = 31; });
  is_refused([](Plan& plan) { plan.items[2].end = 19; });
  is_refused([](Plan& plan) { plan.items[0].source = 3; });
  is_refused([](Plan& plan) { plan.spans.clear(); });
  is_refused([](Plan& plan) { plan.spans.push_back(plan.spans[0]); });
  is_refused([](Plan& plan) { plan.digests.items.resize(2); });
  is_refused([](Plan& plan) { plan.held_back = {0}; });  // a span reads it, too
  is_refused([](Plan& plan) { plan.spans = {}, plan.held_back = {0, 0, 2}; });
  is_refused([](Plan& plan) { plan.spans = {}, plan.held_back = {0, 1, 2}; });  // 1 is empty
  is_refused([](Plan& plan) { plan.spans = {}, plan.held_back = {0, 2, 3}; });
  is_refused([](Plan& plan) {
    plan.spans = {}, plan.held_back = {0, 2};
    plan.items[2].source = 1;
  });
  is_refused([](Plan& plan) { plan.peers = {1}; });
  is_refused([](Plan& plan) { plan.items[0].run = 4; });
  is_refused([](Plan& plan) { plan.items[0].run = plan.items[0].stride = 4; });
  is_refused([](Plan& plan) { plan.items[0].run = 4, plan.items[0].stride = 5; });
  is_refused([](Plan& plan) {
    plan.items[0].run = 2, plan.items[0].stride = 6;
    plan.digests.items.resize(3);
  });
}

}  // namespace
}  // namespace streamer
