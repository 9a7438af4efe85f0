#include "session/python_block.h"

#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plan/segment_cursor.h"

namespace streamer {

std::unique_ptr<PythonBlock> PythonBlock::take(const std::shared_ptr<Session>& session) {
  try {
    std::unique_ptr<PythonBlock> taken(new PythonBlock(session));
    return taken->fill_in() ? std::move(taken) : nullptr;
  } catch (const std::bad_alloc&) {
    session->fail(error_of(ErrorCode::kOutOfMemory, "no memory for the engine"));
    return nullptr;
  }
}

PythonBlock::~PythonBlock() {
  if (session_->is_forked()) return;  // the parent's locks may stay locked forever
  try {
    if (!is_settled_) report(ErrorCode::kSource, "the thread that read these bytes ended");
    let_go();
  } catch (const std::exception&) {  // no memory, not even for the error
  }
}

bool PythonBlock::fill_in() {
  std::optional<PythonLoans::Loan> lent = session_->python().lend();
  if (!lent) return false;
  is_lent_ = true;
  is_settled_ = false;
  loan_ = std::move(*lent);
  return true;
}

bool PythonBlock::make_buffer() {
  const std::span<const Segment> targets = block().read_targets();
  const bool is_direct = targets.size() == 1 && targets[0].target != nullptr;
  if (is_direct) {
    data_ = targets[0].target;
    return true;
  }
  bounce_.reset(new (std::nothrow) std::byte[block().size()]);
  data_ = bounce_.get();
  if (data_ == nullptr) report(ErrorCode::kOutOfMemory, "no memory to read a block into");
  return data_ != nullptr;
}

void PythonBlock::copy_in(std::uint64_t begin, std::span<const std::byte> bytes) {
  const bool is_inside = is_lent_ && begin >= block().begin && begin <= block().end &&
                         bytes.size() <= block().end - begin;
  if (!is_inside) throw std::invalid_argument("bytes outside of the block");
  SegmentCursor cursor(block());
  cursor.skip(begin - block().begin);
  cursor.copy(bytes.data(), bytes.size());
}

void PythonBlock::finish() {
  if (bounce_) SegmentCursor(block()).copy(bounce_.get(), block().size());
  is_settled_ = true;
  session_->python().finish(std::move(loan_));  // with its slot, which others may wait for
  let_go();
}

void PythonBlock::try_again(std::string detail, int http_status) {
  ReadError error = error_of(ErrorCode::kConnect, std::move(detail));
  error.http_status = http_status;
  if (http_status != 0) error.code = ErrorCode::kHttpStatus;
  is_settled_ = true;
  session_->python().try_again(std::move(loan_), std::move(error));
  let_go();
}

void PythonBlock::fail(std::string detail, bool is_kept) {
  report(ErrorCode::kSource, std::move(detail));
  if (!is_kept) let_go();
}

void PythonBlock::report(ErrorCode code, std::string detail) {
  is_settled_ = true;
  session_->python().fail(loan_, error_of(code, std::move(detail)));
}

void PythonBlock::let_go() {
  if (!std::exchange(is_lent_, false)) return;
  data_ = nullptr;
  bounce_.reset();
  loan_.block.leave_slot();
  session_->python().end_loan();
}

}  // namespace streamer
