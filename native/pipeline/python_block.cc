#include "pipeline/python_block.h"

#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "pipeline/segment_cursor.h"

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
  if (session_->is_forked()) return;  // the locks may be held for ever
  try {
    if (!is_settled_) report(ErrorCode::kSource, "the thread that read these bytes ended");
    let_go();
  } catch (const std::exception&) {  // no memory, not even to say so
  }
}

bool PythonBlock::fill_in() {
  std::optional<Block> lent = session_->lend_python_block();
  if (!lent) return false;
  is_lent_ = true;
  is_settled_ = false;
  block_ = std::move(*lent);
  const bool is_direct = block_.segments.size() == 1 && block_.segments[0].target != nullptr;
  if (is_direct) {
    data_ = block_.segments[0].target;
    return true;
  }
  bounce_.reset(new (std::nothrow) std::byte[block_.size()]);
  data_ = bounce_.get();
  if (data_ == nullptr) report(ErrorCode::kOutOfMemory, "no memory to read a block into");
  return data_ != nullptr;
}

void PythonBlock::finish() {
  if (bounce_) SegmentCursor(block_).copy(bounce_.get(), block_.size());
  session_->finish_python_block(std::move(block_));  // with its slot, which others wait for
  is_settled_ = true;
  let_go();
}

void PythonBlock::fail(std::string detail, bool is_kept) {
  report(ErrorCode::kSource, std::move(detail));
  if (!is_kept) let_go();
}

void PythonBlock::report(ErrorCode code, std::string detail) {
  is_settled_ = true;
  ReadError error = error_of(code, std::move(detail));
  error.source = block_.source;
  error.begin = block_.begin;
  error.end = block_.end;
  session_->fail(std::move(error));
}

void PythonBlock::let_go() {
  if (!std::exchange(is_lent_, false)) return;
  data_ = nullptr;
  bounce_.reset();
  block_.slot.reset();
  session_->end_python_loan();
}

}  // namespace streamer
