#include "http/credential_renewals.h"

#include <utility>

namespace streamer {

CredentialRenewals::State CredentialRenewals::check(HttpObject& object, std::uint32_t source,
                                                    double unix_now_s) {
  if (object.is_renewed_in_vain()) {
    ReadError error = error_of(ErrorCode::kClockSkew,
                               "the new credentials had already expired by this machine's clock, "
                               "several times in a row");
    error.source = source;
    scheduler_.fail(std::move(error));
    return State::kInVain;
  }
  if (!object.can_refresh() || !object.is_due_for_renewal(unix_now_s)) return State::kUsable;
  if (object.is_first_to_ask_refresh()) {
    ++counters_.refreshes;
    scheduler_.ask_refresh(source);
  }
  return object.is_expired(unix_now_s) ? State::kAwaited : State::kUsable;
}

}  // namespace streamer
