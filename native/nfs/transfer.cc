#include "nfs/transfer.h"

#include <algorithm>

#include "nfs/libnfs.h"
#include "plan/segment_cursor.h"

namespace streamer {

NfsTransfer::NfsTransfer(Block block, const OutageTicket& ticket, TimePoint now)
    : block_(std::move(block)), ticket_(ticket), started_(now) {
  if (block_.attempts++ == 0) block_.first_started = now;
}

void NfsTransfer::begin(NfsConnection& connection, nfsfh* file, const NfsAttributes& opened) {
  has_begun_ = true;
  connection_ = &connection;
  file_ = file;
  opened_ = opened;
  const std::uint64_t step = connection.read_bytes();
  for (std::uint64_t at = block_.begin + block_.received; at < block_.end; at += step) {
    pieces_.push_back({at, std::min(at + step, block_.end), 0, nullptr});
  }
  missing_ = pieces_.size();
  for (Piece& piece : pieces_) request(piece);
  if (pieces_.empty()) check();
}

void NfsTransfer::fail(ReadError error) {
  if (!error_) error_ = std::move(error);
  is_done_ = true;
}

void NfsTransfer::request(Piece& piece) {
  const std::uint64_t begin = piece.begin + piece.received;
  const std::uint64_t size = piece.end - begin;
  std::byte* in_place = nullptr;
  std::byte* buffer = nullptr;
  if constexpr (kLibnfsFillsBuffers) {
    SegmentCursor cursor(block_);
    cursor.skip(begin - block_.begin - block_.received);
    if (cursor.piece().size >= size) in_place = cursor.piece().target;
    if (in_place == nullptr && !piece.bounce) piece.bounce.reset(new std::byte[size]);
    buffer = in_place == nullptr ? piece.bounce.get() : in_place;
  }
  connection_->read(
      file_, buffer, begin, size,
      [this, &piece, in_place](std::optional<ReadError> error, NfsConnection::Bytes bytes) {
        if (error) return fail(std::move(*error));
        land(piece, bytes, in_place);
      });
}

void NfsTransfer::land(Piece& piece, NfsConnection::Bytes bytes, const std::byte* in_place) {
  if (is_done_) return;
  if (bytes.size == 0) {
    return fail(error_of(ErrorCode::kTruncated, "the file ends early"));
  }
  if (bytes.data != in_place) {
    SegmentCursor cursor(block_);
    cursor.skip(piece.begin + piece.received - block_.begin - block_.received);
    cursor.copy(bytes.data, bytes.size);
  }
  piece.received += bytes.size;
  if (piece.begin + piece.received < piece.end) return request(piece);
  if (--missing_ == 0) check();
}

void NfsTransfer::check() {
  connection_->attributes(file_, [this](std::optional<ReadError> error, NfsAttributes now) {
    if (!error) error = check_unchanged(opened_, now);
    if (error) return fail(std::move(*error));
    is_done_ = true;
  });
}

std::optional<ReadError> NfsTransfer::take_error(TimePoint now) {
  if (!error_) return std::nullopt;
  error_->source = block_.source;
  error_->begin = block_.begin;
  error_->end = block_.end;
  error_->attempts = block_.attempts;
  error_->elapsed_s = seconds_between(block_.first_started, now);
  return std::move(error_);
}

Block NfsTransfer::take_block() {
  for (const Piece& piece : pieces_) {
    block_.received += piece.received;
    if (piece.begin + piece.received < piece.end) break;
  }
  pieces_.clear();
  return std::move(block_);
}

Block NfsTransfer::give_back() {
  --block_.attempts;
  return take_block();
}

}  // namespace streamer
