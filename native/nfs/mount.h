// One connection with its open files and the blocks that it reads.
//
// If the connection, a file or a block fails, the whole mount is broken. Its blocks are returned
// with the bytes that they received, and are read through another mount. The other mount reopens
// their files and compares the versions. This one path handles a lost server, a stale handle and an
// expired lease.
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
  // Mounts the folder of `object` at one of the server's addresses; `attempt` selects the address.
  NfsMount(const NfsObject& object, unsigned attempt, const NfsTimeouts& timeouts);
  ~NfsMount();
  NfsMount(const NfsMount&) = delete;
  NfsMount& operator=(const NfsMount&) = delete;

  // Returns a name. Objects with equal names may share a mount.
  static std::string name_of(const NfsObject& object);

  NfsConnection& connection() { return *connection_; }
  std::size_t transfer_count() const { return transfers_.size(); }

  void start(Block block, const OutageTicket& ticket, NfsObject& object, TimePoint now);
  // Fails blocks whose first attempt started more than `block_deadline_s` ago.
  void enforce_block_deadline(TimePoint now, double block_deadline_s);
  // Opens files and requests blocks, as far as that is possible now.
  void advance();

  struct Outcome {
    std::unique_ptr<NfsTransfer> transfer;
    std::optional<ReadError> error;
    bool was_given_up = false;  // true if another transfer failed
  };
  // Returns the finished blocks, or all blocks if the mount is broken.
  std::vector<Outcome> collect(TimePoint now);
  bool is_broken() const { return connection_ == nullptr; }

  // Closes the files, so that the server does not keep them until their lease ends. Stops after a
  // moment.
  void close_files();

 private:
  struct File {
    NfsObject* object;
    nfsfh* handle = nullptr;
    bool is_open = false;  // opened, and its version is checked
    NfsAttributes opened;
  };

  void open(std::uint32_t source, File& file);
  void open_found(std::uint32_t source, File& file, const std::string& path);
  void check_attributes(std::uint32_t source, File& file);
  void fail_file(std::uint32_t source, ReadError error);
  bool close_one(TimePoint deadline);
  void disconnect();

  std::vector<std::unique_ptr<NfsTransfer>> transfers_;
  std::map<std::uint32_t, File> files_;  // by source
  bool is_opening_ = false;
  // Destroyed first, because its callbacks refer to the members above.
  std::unique_ptr<NfsConnection> connection_;
};

}  // namespace streamer
