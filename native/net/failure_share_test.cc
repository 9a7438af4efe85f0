#include "net/failure_share.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

FailureShare share_after(int requests, int each) {
  FailureShare share;
  for (int i = 1; i <= requests; ++i) share.record(i % each == 0);
  return share;
}

TEST_CASE("a server without any request yet has the usual share of failures") {
  CHECK(FailureShare().value() == doctest::Approx(0.04));
  CHECK(FailureShare().row_factor() == doctest::Approx(1));
}

TEST_CASE("a row of failures may be longer if a larger share fails") {
  CHECK(share_after(500, 2).value() == doctest::Approx(0.5).epsilon(0.02));
  CHECK(share_after(500, 2).row_factor() == doctest::Approx(4.6).epsilon(0.05));
  CHECK(share_after(500, 4).row_factor() == doctest::Approx(2.3).epsilon(0.05));
  CHECK(share_after(500, 100).row_factor() == 1);
}

TEST_CASE("the row of failures has an upper limit if a server fails all requests") {
  CHECK(share_after(10'000, 1).row_factor() == 16);
}

TEST_CASE("failures long ago no longer count") {
  FailureShare share = share_after(500, 2);
  for (int i = 0; i < 500; ++i) share.record(false);
  CHECK(share.row_factor() == 1);
}

}  // namespace
}  // namespace streamer
