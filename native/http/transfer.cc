#include "http/transfer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "http/curl_failure.h"
#include "http/proxy_refusal.h"
#include "http/secrets.h"

namespace streamer {
namespace {

constexpr double kEndOfBodyS = 1;  // the last chunk of a body follows its last byte at once
constexpr std::size_t kErrorBodyBytes = 8 << 10;  // an <Error> document is a few hundred bytes

}  // namespace

HttpTransfer::HttpTransfer(const Timeouts& timeouts, std::uint64_t& received_bytes)
    : timeouts_(timeouts), received_bytes_(received_bytes), easy_(curl_easy_init()) {
  if (!easy_) throw std::runtime_error("libcurl cannot create a handle");
}

void HttpTransfer::prepare(Block block, HttpObject& object,
                           std::shared_ptr<const HttpTarget> target, TimePoint now,
                           double first_byte_s) {
  first_byte_s_ = std::min(first_byte_s, timeouts_.first_byte_timeout_s);
  block_ = std::move(block);
  if (block_.attempts++ == 0) block_.first_started = now;
  object_ = &object;
  target_ = std::move(target);
  range_ = {target_->offset_bytes + block_.begin + block_.received,
            target_->offset_bytes + block_.end,
            target_->whole_bytes > 0 ? target_->whole_bytes : object.size_bytes(),
            object.version(),
            object.version_header(),
            object.has_conditions()};
  asks_for_checksum_ = wants_checksum();
  head_ = ResponseHead(range_.version_header,
                       asks_for_checksum_ ? object.answer_checksum()->answer_header : "");
  cursor_.emplace(block_);
  is_head_checked_ = has_thrown_ = false;
  complete_at_.reset();
  refusal_.reset();
  error_body_.clear();
  message_[0] = '\0';
  started_ = now;
  received_before_ = block_.received;
  stall_watch_.start(now, block_.received, received_bytes_);
  headers_ = headers_of(range_, *target_,
                        asks_for_checksum_ ? object.answer_checksum()->request_header : "");
  const bool is_repeated = block_.attempts > 1;
  addresses_ = addresses_of(*target_, now, is_repeated);
  set_request(easy_.get(), *target_, headers_.get(), addresses_.get(), timeouts_.connect_timeout_s,
              is_repeated);
  // The last connection may have been stale, or may have led to a broken server.
  if (is_repeated && !block_.prefers_open_connection) set_new_connection(easy_.get());
  set_range(easy_.get(), range_);
  set_callbacks();
}

void HttpTransfer::set_callbacks() {
  CURL* easy = easy_.get();
  curl_easy_setopt(easy, CURLOPT_PRIVATE, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &HttpTransfer::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &HttpTransfer::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, message_.data());
}

std::size_t HttpTransfer::on_header(char* data, std::size_t size, std::size_t count,
                                    void* self) noexcept {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  try {
    transfer.head_.take_line({data, size * count});
    return size * count;
  } catch (...) {
    transfer.has_thrown_ = true;
    return 0;  // any other number of bytes makes libcurl fail the request
  }
}

std::size_t HttpTransfer::on_body(char* data, std::size_t size, std::size_t count,
                                  void* self) noexcept {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  try {
    return transfer.take_body({data, size * count}) ? size * count : 0;
  } catch (...) {
    transfer.has_thrown_ = true;
    return 0;
  }
}

bool HttpTransfer::take_body(std::string_view data) {
  if (head_.status < 200 || head_.status > 299 || may_be_error_document(head_)) {
    error_body_.append(
        data.substr(0, kErrorBodyBytes - std::min(kErrorBodyBytes, error_body_.size())));
    return error_body_.size() < kErrorBodyBytes;
  }
  if (!is_head_checked_) {
    is_head_checked_ = true;
    refusal_ = check_range_response(range_, head_, {});
    if (!refusal_ && !object_->pin_version(head_.version)) {
      refusal_ = error_of(ErrorCode::kChanged, "the object was replaced while it was read");
    }
    if (!refusal_) expect_checksum();
    avoid_slow_address(easy_.get(), *target_);
  }
  if (refusal_) return false;
  if (data.size() > block_.size() - block_.received) {
    refusal_ =
        error_of(ErrorCode::kRangeResponse, "the server sent more bytes than the range holds");
    return false;
  }
  const std::uint64_t copied =
      cursor_->copy(reinterpret_cast<const std::byte*>(data.data()), data.size());
  block_.received += copied;
  if (block_.received == block_.size()) complete_at_ = Clock::now();
  received_bytes_ += copied;
  object_->note_received(copied);
  if (ProgressWatch* const progress = object_->progress()) progress->note_bytes(copied);
  if (block_.answer) {
    block_.answer->received = compute(object_->answer_checksum()->code,
                                      std::as_bytes(std::span(data)), block_.answer->received);
  }
  return true;
}

bool HttpTransfer::wants_checksum() const {
  return object_->compares_answers() &&
         range_.end - range_.begin <= object_->answer_checksum()->max_bytes;
}

// The response to a continued request has a checksum of its own bytes only. The checksum of the
// first response covers all bytes, including those before the cut, so the first one is kept.
void HttpTransfer::expect_checksum() {
  if (!object_->answer_checksum() || block_.answer) return;
  if (head_.checksum.empty()) {
    object_->note_answer_without_checksum();
    return;
  }
  const auto expected = value_of(*object_->answer_checksum(), head_.checksum);
  if (!expected) {
    refusal_ = error_of(ErrorCode::kRangeResponse, "the answer's checksum is malformed (" +
                                                       head_.checksum.substr(0, 40) + ")");
    return;
  }
  block_.answer = AnswerCheck{.begin = range_.begin, .expected = *expected, .received = 0};
}

// Compares the checksum when all bytes are there. If it differs, requests all bytes of the response
// again, because the wrong bytes cannot be identified.
std::optional<ReadError> HttpTransfer::compare_checksum() {
  if (!block_.answer) return std::nullopt;
  const AnswerCheck answer = *block_.answer;
  if (answer.received == answer.expected) {
    block_.answer.reset();
    return std::nullopt;
  }
  block_.forget_open();
  const Crc code = object_->answer_checksum()->code;
  ReadError error = error_of(ErrorCode::kChecksum,
                             "the bytes do not match the checksum that the server sent with them");
  error.begin = answer.begin;
  if (block_.destinations.size() == 1) error.item = block_.destinations[0].item;
  error.algorithm = name_of(code);
  error.expected = hexadecimal(code, answer.expected);
  error.found = hexadecimal(code, answer.received);
  return error;
}

std::optional<ReadError> HttpTransfer::conclude(CURLcode result, TimePoint now) {
  std::optional<ReadError> error = std::move(refusal_);
  if (has_thrown_) error = error_of(ErrorCode::kOutOfMemory, "no memory for an answer");
  const bool is_answered = head_.status >= 300 || (head_.status > 0 && !is_head_checked_);
  if (!error && is_answered && (result == CURLE_OK || !error_body_.empty())) {
    error = check_range_response(range_, head_, error_body_);
  }
  if (!error && result != CURLE_OK && !complete_at_) {  // else only the end of the framing is lost
    const ReadError failure =
        error_of_curl(result, message_.data(), is_head_checked_, target_->endpoint->has_answered());
    error = error_of(failure.code, failure.detail);
  }
  if (!error && block_.received != block_.size()) {
    error = error_of(ErrorCode::kConnect,
                     "the server closed the connection before the range was complete");
  }
  if (!error) error = compare_checksum();
  if (error && head_.status == 412 && !precondition_of(range_).empty()) {
    object_->forgo_conditions();
    error->code =
        ErrorCode::kRangeResponse;  // the next attempt compares the version in the response
  }
  if (error && asks_for_checksum_ && means_unknown_header(error->storage_code)) {
    object_->note_answer_without_checksum();
    error->code = ErrorCode::kRangeResponse;  // the next attempt does not send the header
  }
  if (error) {
    blame_proxy(*error, result, easy_.get(), *target_);
    complete_error(*error, now);
  }
  return error;
}

bool HttpTransfer::lacks_only_its_end(TimePoint now) const {
  return complete_at_ && seconds_between(*complete_at_, now) > kEndOfBodyS;
}

std::optional<ReadError> HttpTransfer::check_deadlines(TimePoint now, std::size_t active,
                                                       double block_deadline_s) {
  std::optional<ReadError> error;
  if (seconds_between(block_.first_started, now) > block_deadline_s) {
    error = error_of(ErrorCode::kTimeout, "the block's time is up (block_deadline_s)");
  } else if (head_.status == 0) {
    curl_off_t connected_us = 0;  // connection and TLS handshake; 0 until they are done
    curl_easy_getinfo(easy_.get(), CURLINFO_PRETRANSFER_TIME_T, &connected_us);
    const double limit = static_cast<double>(connected_us) / 1e6 + first_byte_s_;
    if (connected_us > 0 && seconds_between(started_, now) > limit) {
      error = error_of(ErrorCode::kTimeout, "no answer within the first-byte time-out");
    }
    // Before the first byte there is no stall.
    stall_watch_.start(now, block_.received, received_bytes_);
  } else if (stall_watch_.has_stalled(now, block_.received, received_bytes_, active)) {
    error = error_of(ErrorCode::kTimeout, "the transfer stalled");
  }
  if (error) complete_error(*error, now);
  return error;
}

AnswerTimes HttpTransfer::answered_in() const {
  curl_off_t connected_us = 0;
  curl_off_t first_byte_us = 0;
  curl_off_t total_us = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_PRETRANSFER_TIME_T, &connected_us);
  curl_easy_getinfo(easy_.get(), CURLINFO_STARTTRANSFER_TIME_T, &first_byte_us);
  curl_easy_getinfo(easy_.get(), CURLINFO_TOTAL_TIME_T, &total_us);
  return {.first_byte_s = static_cast<double>(first_byte_us - connected_us) / 1e6,
          .complete_s = static_cast<double>(total_us - connected_us) / 1e6};
}

TraceEvent HttpTransfer::traced(const ReadError* error) const {
  const auto reached = [this](CURLINFO info) {
    curl_off_t us = 0;
    curl_easy_getinfo(easy_.get(), info, &us);
    return static_cast<std::int64_t>(us);
  };
  const std::int64_t named = reached(CURLINFO_NAMELOOKUP_TIME_T);
  const std::int64_t connected = std::max(named, reached(CURLINFO_CONNECT_TIME_T));
  const std::int64_t secured = std::max(connected, reached(CURLINFO_APPCONNECT_TIME_T));
  const std::int64_t sent = std::max(secured, reached(CURLINFO_PRETRANSFER_TIME_T));
  const std::int64_t answered = std::max(sent, reached(CURLINFO_STARTTRANSFER_TIME_T));
  const std::int64_t ended = std::max(answered, reached(CURLINFO_TOTAL_TIME_T));
  return {.category = "request",
          .source = block_.source,
          .offset = block_.begin + received_before_,
          .bytes = block_.received - std::min(block_.received, received_before_),
          .attempt = block_.attempts,
          .http_status = head_.status,
          .reuses_connection = !has_new_connection(),
          .phases_us = {named, connected - named, secured - connected, answered - sent,
                        ended - answered},
          .failure = error != nullptr ? error->detail : "",
          .may_overlap = true};
}

double HttpTransfer::remaining_s(double elapsed_s) const {
  const auto received = static_cast<double>(block_.received - received_before_);
  if (received == 0) return std::numeric_limits<double>::infinity();
  return elapsed_s / received * static_cast<double>(block_.size() - block_.received);
}

ReadError HttpTransfer::error_of(ErrorCode code, std::string detail) const {
  ReadError error;
  error.code = code;
  error.detail = std::move(detail);
  error.begin = range_.begin;
  error.end = range_.end;
  error.http_status = head_.status;
  error.request_id = head_.request_id;
  return error;
}

void HttpTransfer::complete_error(ReadError& error, TimePoint now) const {
  error.source = block_.source;
  error.begin -= target_->offset_bytes;
  error.end -= target_->offset_bytes;
  error.attempts = block_.attempts;
  error.elapsed_s = seconds_between(block_.first_started, now);
  mask_secrets(error, *target_);
}

}  // namespace streamer
