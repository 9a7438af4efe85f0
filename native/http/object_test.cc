#include "http/object.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

HttpTarget target_until(double renew_at_s, double expires_at_s) {
  HttpTarget target;
  target.url = "http://server/object";
  target.renew_at_s = renew_at_s;
  target.expires_at_s = expires_at_s;
  return target;
}

TEST_CASE("the first response pins the version, and every other response is compared with it") {
  HttpObject object(target_until(0, 0), 100, "", "ETag", false);
  CHECK(object.pin_version(""));  // a response without a version pins nothing
  CHECK(object.pin_version("\"a\""));
  CHECK(object.version() == "\"a\"");
  CHECK(object.pin_version("\"a\""));
  CHECK(object.pin_version(""));
  CHECK_FALSE(object.pin_version("\"b\""));
  CHECK(object.version() == "\"a\"");
}

TEST_CASE("a version that the caller passed is pinned from the start") {
  HttpObject object(target_until(0, 0), 100, "\"a\"", "ETag", false);
  CHECK_FALSE(object.pin_version("\"b\""));
}

TEST_CASE("credentials are renewed in time, and not used after they expire") {
  HttpObject object(target_until(80, 100), 100, "", "", true);
  CHECK_FALSE(object.is_due_for_renewal(79));
  CHECK(object.is_due_for_renewal(80));
  CHECK_FALSE(object.is_expired(99));
  CHECK(object.is_expired(100));
  CHECK(object.is_first_to_ask_refresh());
  CHECK_FALSE(object.is_first_to_ask_refresh());
  object.renew(target_until(180, 200), 85);
  CHECK_FALSE(object.is_expired(100));
  CHECK(object.is_first_to_ask_refresh());
}

TEST_CASE("a target that the server refused counts as expired, unless it was renewed meanwhile") {
  HttpObject object(target_until(0, 0), 100, "", "", true);
  const auto refused = object.target();
  object.refuse(refused);
  CHECK(object.is_expired(1));
  CHECK(object.is_due_for_renewal(1));
  object.renew(target_until(0, 0), 1);
  CHECK_FALSE(object.is_expired(1));
  object.refuse(refused);
  CHECK_FALSE(object.is_expired(1));
}

TEST_CASE("new credentials that are already expired three times in a row end the renewals") {
  HttpObject object(target_until(0, 10), 100, "", "", true);
  object.renew(target_until(0, 20), 30);
  object.renew(target_until(0, 20), 30);
  CHECK_FALSE(object.is_renewed_in_vain());
  object.renew(target_until(0, 40), 30);
  for (int i = 0; i < 3; ++i) object.renew(target_until(0, 20), 30);
  CHECK(object.is_renewed_in_vain());
}

}  // namespace
}  // namespace streamer
