#include "http/credential_renewals.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace streamer {
namespace {

using State = CredentialRenewals::State;

HttpTarget target_until(double renew_at_s, double expires_at_s) {
  HttpTarget target;
  target.url = "http://signed/object";
  target.renew_at_s = renew_at_s;
  target.expires_at_s = expires_at_s;
  return target;
}

// A load of one object, of 64 bytes.
class Load {
 public:
  Delivery wait() { return scheduler_.wait(0); }
  State check(HttpObject& object, double unix_now_s) {
    return renewals_.check(object, 0, unix_now_s);
  }
  HttpCounters counters;

 private:
  static Plan plan() {
    Plan plan;
    plan.items = {{0, 0, 64}};
    plan.spans = {{0, 0, 64, 0, 1}};
    return plan;
  }
  Scheduler scheduler_{
      plan(), {Lane::kHttp}, {.block_bytes = {64, 64, 64, 64}, .memory_limit_bytes = 1 << 20}};
  CredentialRenewals renewals_{scheduler_, counters};
};

TEST_CASE("the consumer is asked once for new credentials before the old ones expire") {
  Load load;
  HttpObject object(target_until(50, 100), 64, "", "ETag", true);
  CHECK(load.check(object, 49) == State::kUsable);
  CHECK(load.wait().to_refresh.empty());
  CHECK(load.check(object, 50) == State::kUsable);
  CHECK(load.wait().to_refresh == std::vector<std::uint32_t>{0});
  CHECK(load.check(object, 51) == State::kUsable);
  CHECK(load.wait().to_refresh.empty());
  CHECK(load.counters.refreshes == 1);
  CHECK(load.check(object, 100) == State::kAwaited);
  object.renew(target_until(150, 200), 100);
  CHECK(load.check(object, 100) == State::kUsable);
}

TEST_CASE("credentials that cannot be renewed are used until the server refuses them") {
  Load load;
  HttpObject object(target_until(50, 100), 64, "", "ETag", false);
  CHECK(load.check(object, 1000) == State::kUsable);
  CHECK(load.counters.refreshes == 0);
}

TEST_CASE("new credentials that had always expired fail the load") {
  Load load;
  HttpObject object(target_until(50, 100), 64, "", "ETag", true);
  for (int i = 0; i < 3; ++i) object.renew(target_until(50, 100), 1000);
  CHECK(load.check(object, 1000) == State::kInVain);
  const Delivery delivery = load.wait();
  REQUIRE(delivery.error);
  CHECK(delivery.error->code == ErrorCode::kClockSkew);
  CHECK(load.counters.refreshes == 0);
}

}  // namespace
}  // namespace streamer
