#include "net/pressure_record.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

void record(PressureRecord& pressure, std::uint32_t in_flight, int good, int all) {
  for (int i = 0; i < all; ++i) pressure.record(in_flight, i >= good);
}

TEST_CASE("fewer requests help if the answered share doubles with half as many in flight") {
  PressureRecord pressure;
  record(pressure, 64, 25, 100);
  record(pressure, 32, 50, 100);
  CHECK(pressure.remedy_at(32) == Remedy::kFewer);
}

TEST_CASE("fewer requests do not help if the same share fails") {
  PressureRecord pressure;
  record(pressure, 64, 50, 100);
  record(pressure, 16, 50, 100);
  CHECK(pressure.remedy_at(16) == Remedy::kNone);
}

TEST_CASE("a few answers decide nothing, and neither do answers at only one number of requests") {
  PressureRecord pressure;
  record(pressure, 64, 10, 20);
  record(pressure, 16, 50, 100);
  CHECK(pressure.remedy_at(16) == Remedy::kUnknown);
  CHECK(pressure.remedy_at(64) == Remedy::kUnknown);
}

TEST_CASE("old answers of a server no longer count") {
  PressureRecord pressure;
  record(pressure, 64, 500, 1000);
  record(pressure, 16, 900, 1000);
  CHECK(pressure.remedy_at(16) == Remedy::kFewer);
  record(pressure, 16, 500, 1000);
  CHECK(pressure.remedy_at(16) == Remedy::kNone);
}

TEST_CASE("any number of requests may be in flight") {
  PressureRecord pressure;
  record(pressure, 1'000'000, 10, 100);
  record(pressure, 1, 90, 100);
  CHECK(pressure.remedy_at(1) == Remedy::kFewer);
}

}  // namespace
}  // namespace streamer
