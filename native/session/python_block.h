// A block that a Python thread fills.
//
// If the block has a single destination, the buffer is that destination (for a device: its pinned
// slot). Otherwise finish() scatters a separate buffer. The buffer stays valid until the block is
// released, even if its session was closed meanwhile. So a plug-in that is late writes into memory
// that nobody reads. A source that has the bytes in memory needs no buffer: copy_in() copies them
// to their places.
//
// The load never waits forever for the thread of a block. A block that is dropped before finish()
// or fail() fails the load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "plan/plan.h"
#include "session/session.h"

namespace streamer {

class PythonBlock {
 public:
  // Waits for the next block. Returns null if there is none, or if there is no memory for it. In
  // the latter case the load fails.
  static std::unique_ptr<PythonBlock> take(const std::shared_ptr<Session>& session);
  ~PythonBlock();
  PythonBlock(const PythonBlock&) = delete;
  PythonBlock& operator=(const PythonBlock&) = delete;

  const Block& block() const { return loan_.block; }
  // Creates the buffer. Returns false if there is no memory for it; the load has failed then.
  bool make_buffer();
  // Null before make_buffer(), and after the block is released.
  std::byte* data() const { return data_; }

  // Copies bytes of the object, which start at the offset `begin` in the object, to their places.
  // Throws std::invalid_argument if some of them are outside of the block, or the block is
  // released.
  void copy_in(std::uint64_t begin, std::span<const std::byte> bytes);

  // Records that every byte is in place, and that nobody writes to the buffer any more. Call it
  // once.
  void finish();
  // Records a failure of the source that may pass. Nobody may write to the buffer any more. The
  // block is read again, or ends the load. `http_status` is 0 if there is none.
  void try_again(std::string detail, int http_status);
  // Records that the source failed, and stops the session. `is_kept`: somebody may still write to
  // the buffer, which stays until this object is destroyed.
  void fail(std::string detail, bool is_kept);

 private:
  explicit PythonBlock(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  bool fill_in();
  void report(ErrorCode code, std::string detail);
  void let_go();

  std::shared_ptr<Session> session_;
  PythonLoans::Loan loan_;
  std::unique_ptr<std::byte[]> bounce_;
  std::byte* data_ = nullptr;
  bool is_lent_ = false;    // counted as a loan by the scheduler, which keeps all memory meanwhile
  bool is_settled_ = true;  // finished or failed
};

}  // namespace streamer
