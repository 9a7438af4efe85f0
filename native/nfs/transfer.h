// One block on its way from an open file of an NFS server to its place.
//
// The block is asked for in reads of the size the server likes, all at once; each is completed if
// it comes short. When the last has come, the file is compared with what it was when it was opened.
// An end of the file before the end of the block is an error.
//
// A transfer that has begun must outlive its connection, unless it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "net/outage.h"
#include "nfs/connection.h"
#include "plan/plan.h"

namespace streamer {

class NfsTransfer {
 public:
  NfsTransfer(Block block, const OutageTicket& ticket, TimePoint now);

  std::uint32_t source() const { return block_.source; }
  std::uint64_t size() const { return block_.size(); }
  const OutageTicket& ticket() const { return ticket_; }
  TimePoint first_started() const { return block_.first_started; }
  bool has_begun() const { return has_begun_; }
  // All bytes are there and of one version, or there is an error.
  bool is_done() const { return is_done_; }

  void begin(NfsConnection& connection, nfsfh* file, const NfsAttributes& opened);
  void fail(ReadError error);

  // The error with what it concerns, when there is one.
  std::optional<ReadError> take_error(TimePoint now);
  // The block, with the bytes counted that need not be read again.
  Block take_block();
  // As take_block(), of a block that had no chance: this does not count as an attempt.
  Block give_back();

 private:
  struct Piece {
    std::uint64_t begin;  // in the object
    std::uint64_t end;
    std::uint64_t received = 0;
    std::unique_ptr<std::byte[]> bounce;  // where its bytes go to several places
  };

  void ask(Piece& piece);
  void land(Piece& piece, NfsConnection::Bytes bytes, const std::byte* in_place);
  void check();

  Block block_;
  const OutageTicket ticket_;
  NfsConnection* connection_ = nullptr;
  nfsfh* file_ = nullptr;
  NfsAttributes opened_;
  std::vector<Piece> pieces_;
  std::size_t missing_ = 0;  // pieces
  bool has_begun_ = false;
  bool is_done_ = false;
  std::optional<ReadError> error_;
};

}  // namespace streamer
