// Reads one block from an open file of an NFS server into its place.
//
// The block is requested in reads of the server's preferred size, all at the same time. If a read
// is short, the rest is requested again. After the last read, the file's attributes are compared
// with those at the opening. A file that ends before the block is an error.
//
// A transfer that has begun must exist at least as long as its connection, or until it is done.
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
  const Block& block() const { return block_; }
  TimePoint started() const { return started_; }
  const OutageTicket& ticket() const { return ticket_; }
  TimePoint first_started() const { return block_.first_started; }
  bool has_begun() const { return has_begun_; }
  // Whether all bytes are in place and of one version, or there is an error.
  bool is_done() const { return is_done_; }

  void begin(NfsConnection& connection, nfsfh* file, const NfsAttributes& opened);
  void fail(ReadError error);

  // Returns the error, if any, with its source, range, attempts and time.
  std::optional<ReadError> take_error(TimePoint now);
  // Returns the block. Its `received` counts the bytes that need no further read.
  Block take_block();
  // Like take_block(), for a block that failed because of another block. The attempt does not
  // count.
  Block give_back();

 private:
  struct Piece {
    std::uint64_t begin;  // in the object
    std::uint64_t end;
    std::uint64_t received = 0;
    std::unique_ptr<std::byte[]> bounce;  // only set if the bytes go to several places
  };

  void request(Piece& piece);
  void land(Piece& piece, NfsConnection::Bytes bytes, const std::byte* in_place);
  void check();

  Block block_;
  const OutageTicket ticket_;
  const TimePoint started_;
  NfsConnection* connection_ = nullptr;
  nfsfh* file_ = nullptr;
  NfsAttributes opened_;
  std::vector<Piece> pieces_;
  std::size_t missing_ = 0;  // number of pieces
  bool has_begun_ = false;
  bool is_done_ = false;
  std::optional<ReadError> error_;
};

}  // namespace streamer
