// One ranged GET: puts the bytes of a block in their place, or returns an error.
//
// The head of the response is checked before the first byte of its body is stored, so a wrong
// response never reaches a tensor. If the server sends checksums, the bytes are compared after the
// last one has arrived, and wrong bytes are read again. A transfer belongs to the thread of its
// reactor, and is reused for one request after another.
#pragma once

#include <curl/curl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/read_error.h"
#include "base/trace_log.h"
#include "http/object.h"
#include "http/range_response.h"
#include "http/request.h"
#include "http/stall_watch.h"
#include "net/timeouts.h"
#include "plan/plan.h"
#include "plan/segment_cursor.h"

namespace streamer {

class HttpTransfer {
 public:
  // `received_bytes` counts the bytes that all transfers of the reactor received. It must outlive
  // the transfer.
  HttpTransfer(const Timeouts& timeouts, std::uint64_t& received_bytes);
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  CURL* handle() const { return easy_.get(); }

  // Prepares the request for the missing bytes of the block. The caller adds handle() to its multi
  // handle. `first_byte_s`: how long the response may take to start, if that is less than the
  // option.
  void prepare(Block block, HttpObject& object, std::shared_ptr<const HttpTarget> target,
               TimePoint now, double first_byte_s);

  // Returns the error of the ended request, or nothing if every byte is in place.
  std::optional<ReadError> conclude(CURLcode result, TimePoint now);

  // Whether all bytes of the range arrived some time ago, and the server does not end its response:
  // a last chunk is missing, or the response has neither a length nor chunks.
  bool lacks_only_its_end(TimePoint now) const;

  // Returns the time-out that this transfer has exceeded, if any. `active`: the number of transfers
  // under way in its reactor. `block_deadline_s` counts from the block's first attempt.
  std::optional<ReadError> check_deadlines(TimePoint now, std::size_t active,
                                           double block_deadline_s);

  // Moves out the block with the bytes that it received.
  Block take_block() { return std::move(block_); }
  const Block& block() const { return block_; }

  AnswerTimes answered_in() const;
  // Whether no byte of a response arrived.
  bool was_silent() const { return head_.status == 0; }
  bool has_new_connection() const { return streamer::has_new_connection(easy_.get()); }
  // Whether no byte of a response arrived, and the connection was new. Then the server may not
  // serve more connections at a time.
  bool was_silent_on_new_connection() const { return was_silent() && has_new_connection(); }
  // Returns how long the remaining bytes will take at the average speed since the request was sent,
  // `elapsed_s` ago.
  double remaining_s(double elapsed_s) const;

  // Returns what a trace says about the request, which has ended.
  TraceEvent traced(const ReadError* error) const;

  const std::shared_ptr<const HttpTarget>& target() const { return target_; }
  HttpObject& object() const { return *object_; }

 private:
  // libcurl is written in C, so nothing may be thrown through it.
  static std::size_t on_header(char* data, std::size_t size, std::size_t count,
                               void* self) noexcept;
  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self) noexcept;
  bool take_body(std::string_view data);
  bool wants_checksum() const;
  void expect_checksum();
  std::optional<ReadError> compare_checksum();
  void set_callbacks();
  ReadError error_of(ErrorCode code, std::string detail) const;
  void complete_error(ReadError& error, TimePoint now) const;

  const Timeouts timeouts_;
  std::uint64_t& received_bytes_;
  EasyHandle easy_;
  CurlList headers_;
  CurlList addresses_;
  std::array<char, CURL_ERROR_SIZE> message_{};

  Block block_;
  HttpObject* object_ = nullptr;
  std::shared_ptr<const HttpTarget> target_;
  RangeRequest range_;
  ResponseHead head_;
  std::optional<SegmentCursor> cursor_;
  bool asks_for_checksum_ = false;
  bool is_head_checked_ = false;
  bool has_thrown_ = false;  // a callback ran out of memory
  std::optional<ReadError> refusal_;
  std::string error_body_;
  TimePoint started_{};
  std::optional<TimePoint> complete_at_;  // when the last byte of the range arrived
  double first_byte_s_ = 0;               // limit for this request, at most the option
  std::uint64_t received_before_ = 0;     // bytes that earlier attempts at the block received
  StallWatch stall_watch_{timeouts_};
};

}  // namespace streamer
