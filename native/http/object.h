// One object behind a URL, shared by all reactors of a session.
//
// The way to reach the object (URL, headers, expiry) is an immutable HttpTarget. Python replaces
// the target when credentials are renewed; requests under way keep the target that they started
// with. The version is in the header `version_header` of every response. The caller or the first
// response pins the version, and it never changes afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/answer_checksum.h"
#include "http/progress_watch.h"
#include "http/range_response.h"
#include "net/endpoint.h"

namespace streamer {

struct HttpTarget {
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  std::string ca_file;               // PEM bundle; empty: libcurl's own default
  std::string proxy;                 // empty: the proxy of the environment
  double expires_at_s = 0;           // Unix time; 0: never
  double renew_at_s = 0;             // when to request a new target; 0: never
  bool is_redirect = false;          // the URL came from a redirect
  std::string client_cert = {};      // PEM file of our own certificate; may be empty
  std::string client_key = {};       // PEM file of its key; empty: client_cert has the key too
  // The object may be a part of what the URL names, such as a member of an archive.
  std::uint64_t offset_bytes = 0;  // where the object begins
  std::uint64_t whole_bytes = 0;   // size of what the URL names; 0: the object is all of it
  bool checks_host = true;         // whether the server's certificate must name its host

  std::shared_ptr<Endpoint> endpoint = {};  // for URL and proxy; set by HttpObject
};

class HttpObject {
 public:
  HttpObject(HttpTarget target, std::uint64_t size_bytes, std::string version,
             std::string version_header, bool can_refresh)
      : size_bytes_(size_bytes),
        version_header_(std::move(version_header)),
        can_refresh_(can_refresh),
        target_(shared(std::move(target))),
        version_(std::move(version)) {}

  // The object's number in this process, from 1.
  std::uint64_t id() const { return id_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  // Empty if no header has the version of this object. No version is compared then.
  const std::string& version_header() const { return version_header_; }
  bool can_refresh() const { return can_refresh_; }

  // Requests a checksum with each response, and compares it. Must be called before the first
  // request.
  void compare_answers(AnswerChecksum checksum) { answer_checksum_ = std::move(checksum); }
  const std::optional<AnswerChecksum>& answer_checksum() const { return answer_checksum_; }
  // Records a response without a checksum. The whole object can no longer be verified then, so no
  // further checksum is requested.
  void note_answer_without_checksum() { has_unverified_answers_ = true; }
  // Whether every response so far was compared with its checksum.
  bool compares_answers() const { return answer_checksum_ && !has_unverified_answers_; }

  // Some servers answer 412 to their own version. Then no further request names the version as its
  // condition, and only the version in each response is compared.
  void forgo_conditions() { has_conditions_ = false; }
  bool has_conditions() const { return has_conditions_; }

  // Makes this an object in the cache of another machine, which is given up if it is too slow. Must
  // be called before the first request.
  void watch_progress() { progress_.emplace(); }
  ProgressWatch* progress() { return progress_ ? &*progress_ : nullptr; }

  void note_received(std::uint64_t bytes) { received_bytes_ += bytes; }
  std::uint64_t received_bytes() const { return received_bytes_; }

  std::shared_ptr<const HttpTarget> target() {
    const std::lock_guard lock(mutex_);
    return target_;
  }

  // Sets the target with new credentials.
  void renew(HttpTarget target, double unix_now_s) {
    const std::lock_guard lock(mutex_);
    const bool is_in_vain = target.expires_at_s > 0 && unix_now_s >= target.expires_at_s;
    renewals_in_vain_ = is_in_vain ? renewals_in_vain_ + 1 : 0;
    target_ = shared(std::move(target));
    is_refresh_asked_ = false;
    is_refused_ = false;
  }

  // Whether several new targets in a row had already expired. The clock of this machine or of the
  // issuer is wrong then.
  bool is_renewed_in_vain() {
    const std::lock_guard lock(mutex_);
    return renewals_in_vain_ >= kMostRenewalsInVain;
  }

  // Records that the server reported this target as expired. No further request uses it.
  void refuse(const std::shared_ptr<const HttpTarget>& target) {
    const std::lock_guard lock(mutex_);
    if (target == target_) is_refused_ = true;
  }

  // Whether the server would refuse a request now, because the target has expired.
  bool is_expired(double unix_now_s) {
    const std::lock_guard lock(mutex_);
    return is_refused_ || (target_->expires_at_s > 0 && unix_now_s >= target_->expires_at_s);
  }

  bool is_due_for_renewal(double unix_now_s) {
    const std::lock_guard lock(mutex_);
    return is_refused_ || (target_->renew_at_s > 0 && unix_now_s >= target_->renew_at_s);
  }

  // Returns true for the first caller since the last renewal. This caller asks the consumer for new
  // credentials.
  bool is_first_to_ask_refresh() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(is_refresh_asked_, true);
  }

  std::string version() {
    const std::lock_guard lock(mutex_);
    return version_;
  }

  // Pins the version if none is pinned yet. Returns false if another version is pinned.
  bool pin_version(const std::string& version) {
    const std::lock_guard lock(mutex_);
    if (version_.empty()) version_ = version;
    return version.empty() || is_same_version(version_, version);
  }

 private:
  static constexpr int kMostRenewalsInVain = 3;

  static std::shared_ptr<const HttpTarget> shared(HttpTarget target) {
    target.endpoint = Endpoint::of(target.url, target.proxy);
    return std::make_shared<const HttpTarget>(std::move(target));
  }

  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }

  const std::uint64_t id_ = next_id();
  const std::uint64_t size_bytes_;
  const std::string version_header_;
  const bool can_refresh_;
  std::optional<AnswerChecksum> answer_checksum_;
  std::optional<ProgressWatch> progress_;
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<bool> has_unverified_answers_{false};
  std::atomic<bool> has_conditions_{true};
  std::mutex mutex_;
  std::shared_ptr<const HttpTarget> target_;  // guarded by mutex_
  std::string version_;                       // guarded by mutex_
  bool is_refresh_asked_ = false;             // guarded by mutex_
  bool is_refused_ = false;                   // guarded by mutex_
  int renewals_in_vain_ = 0;                  // consecutive ones; guarded by mutex_
};

}  // namespace streamer
