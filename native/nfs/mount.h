// One connection with the files it has open and the blocks it reads of them.
//
// When the connection, a file or a block fails, the mount is broken as a whole: the blocks come
// back with what they have received, and are read over another mount, which opens their files anew
// and compares their versions. That one path serves a lost server, a stale handle and a forgotten
// lease alike.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nfs/connection.h"
#include "nfs/object.h"
#include "nfs/transfer.h"

namespace streamer {

class NfsMount {
 public:
  // Mounts what `object` needs, at the server's address number `attempt`.
  NfsMount(const NfsObject& object, unsigned attempt, const NfsTimeouts& timeouts);
  ~NfsMount();
  NfsMount(const NfsMount&) = delete;
  NfsMount& operator=(const NfsMount&) = delete;

  // Objects with equal names may share a mount.
  static std::string name_of(const NfsObject& object);

  NfsConnection& connection() { return *connection_; }
  std::size_t transfer_count() const { return transfers_.size(); }

  void start(Block block, const OutageTicket& ticket, NfsObject& object, TimePoint now);
  // Fails blocks whose first attempt is so long ago.
  void enforce_block_deadline(TimePoint now, double block_deadline_s);
  // Opens files and asks for blocks, as far as is possible now.
  void advance();

  struct Outcome {
    std::unique_ptr<NfsTransfer> transfer;
    std::optional<ReadError> error;
    bool was_given_up = false;  // for the error of another
  };
  // The blocks that are through. When the mount is broken: all of them.
  std::vector<Outcome> collect(TimePoint now);
  bool is_broken() const { return connection_ == nullptr; }

  // Closes the files, so that the server need not keep them until their lease ends; gives up after
  // a moment.
  void close_files();

 private:
  struct File {
    NfsObject* object;
    nfsfh* handle = nullptr;
    bool is_open = false;  // and compared
    NfsAttributes opened;
  };

  void open(std::uint32_t source, File& file);
  void open_found(std::uint32_t source, File& file, const std::string& path);
  void look_at(std::uint32_t source, File& file);
  void fail_file(std::uint32_t source, ReadError error);
  bool close_one(TimePoint deadline);
  void break_up();

  std::vector<std::unique_ptr<NfsTransfer>> transfers_;
  std::map<std::uint32_t, File> files_;  // by source
  bool is_opening_ = false;
  std::unique_ptr<NfsConnection> connection_;  // dies before what its questions point at
};

}  // namespace streamer
