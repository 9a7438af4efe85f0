// An open descriptor with an attachment that is released before the descriptor is closed.
//
// Thread-safe.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>

namespace streamer {

class OpenFile {
 public:
  explicit OpenFile(int opened) : descriptor(opened) {}
  ~OpenFile() {
    attachment_.reset();
    close(descriptor);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Returns the attachment; the first call creates it with `make`.
  template <typename Make>
  std::shared_ptr<void> attachment(Make make) {
    const std::lock_guard lock(mutex_);
    if (!is_made_) attachment_ = make(descriptor);
    is_made_ = true;
    return attachment_;
  }

  const int descriptor;

 private:
  std::mutex mutex_;
  bool is_made_ = false;              // guarded by mutex_
  std::shared_ptr<void> attachment_;  // guarded by mutex_
};

}  // namespace streamer
