// A block while a Python thread fills it.
//
// The buffer is the destination itself where the block has one (for a device: its pinned slot),
// else a bounce buffer that finish() scatters. It stays valid until the block is let go of, even
// when its session was closed meanwhile, so a plug-in that is late writes into memory nobody reads.
// A source that has the bytes in memory needs no buffer: copy_in() copies them to their places.
//
// However its thread ends, the load does not wait for it: a block that is dropped before it was
// finished or failed fails the load.
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
  // Waits for the next block. Null when there is none, or no memory for it, with which the load
  // then fails.
  static std::unique_ptr<PythonBlock> take(const std::shared_ptr<Session>& session);
  ~PythonBlock();
  PythonBlock(const PythonBlock&) = delete;
  PythonBlock& operator=(const PythonBlock&) = delete;

  const Block& block() const { return loan_.block; }
  // Makes the buffer. Returns false if there is no memory for it: the load has failed then.
  bool make_buffer();
  // Null before make_buffer(), and once the block is let go of.
  std::byte* data() const { return data_; }

  // Copies bytes of the object, from the offset `begin` in the object on, to their places. Throws
  // std::invalid_argument if they are not all in the block, or the block is let go of.
  void copy_in(std::uint64_t begin, std::span<const std::byte> bytes);

  // Every byte is in place, and nobody writes the buffer any more. Once.
  void finish();
  // The source failed in a way that may pass; nobody writes the buffer any more. The block is read
  // again, or ends the load. `http_status`: 0 where there is none.
  void try_again(std::string detail, int http_status);
  // The source failed; the session stops. `is_kept`: somebody may still write the buffer, which
  // stays until this object ends.
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
  bool is_lent_ = false;    // counted by the scheduler, which keeps all memory until then
  bool is_settled_ = true;  // finished or failed
};

}  // namespace streamer
