// A block while a Python thread fills it.
//
// The buffer is the destination itself where the block has one (for a device: its pinned slot),
// else a bounce buffer that finish() scatters. It stays valid as long as this object lives, even
// when its session was closed meanwhile, so a plug-in that is late writes into memory nobody reads.
#pragma once

#include <memory>
#include <string>

#include "pipeline/plan.h"
#include "pipeline/session.h"

namespace streamer {

class PythonBlock {
 public:
  PythonBlock(std::shared_ptr<Session> session, Block block);

  const Block& block() const { return block_; }
  std::byte* data() const { return data_; }

  // Every byte is in place. Once.
  void finish();
  // The source failed; the session stops.
  void fail(std::string detail);

 private:
  std::shared_ptr<Session> session_;
  Block block_;
  std::unique_ptr<std::byte[]> bounce_;
  std::byte* data_ = nullptr;
};

}  // namespace streamer
