// NVIDIA's libcufile (GPUDirect Storage), found at run time: reads a local file straight into a
// device's memory, past this machine's.
//
// It is used only where its kernel module is loaded. Without that, and for files that it does not
// support, the library copies through memory of its own, as the pinned ring does.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "cuda/abi.h"

namespace streamer {

struct CuFilePaths {
  std::string library = "libcufile.so.0";
  std::string kernel_module = "/proc/driver/nvidia-fs/version";
  std::string device = "/dev/nvidia-fs0";  // the module's; a container has it if it was given it
  std::string modules = "/proc/modules";   // without which it never returns from its start (1.15)
};

struct CuFileFunctions {
  CuFileStatus (*set_switch)(unsigned number, bool value) = nullptr;  // since CUDA 12.9
  CuFileStatus (*driver_open)() = nullptr;
  CuFileStatus (*driver_close)() = nullptr;
  CuFileStatus (*add)(void** file, CuFileDescription* description) = nullptr;
  void (*remove)(void* file) = nullptr;
  ssize_t (*read)(void* file, void* base, std::size_t bytes, off_t file_offset,
                  off_t base_offset) = nullptr;
};

class CuFile : public std::enable_shared_from_this<CuFile> {
 public:
  // Null, with the reason, where it cannot be used. Unless it `may_copy`, it refuses every file
  // that it would copy through memory of its own; else that is as its configuration says.
  static std::shared_ptr<const CuFile> open(const CuFilePaths& paths, bool may_copy,
                                            std::string& reason);
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  // Makes a file known. Null where it could not be opened with O_DIRECT (code 0), or where the
  // library refuses it with that code. To be freed before the descriptor is closed.
  std::shared_ptr<void> add(int descriptor, int& code) const;

  // Waits until so many bytes from `offset` on are at `target`, on the current device. Returns how
  // many are; or, negative, a code of the library's, or -1 with errno.
  ssize_t read(void* file, std::byte* target, std::size_t bytes, off_t offset) const {
    return functions_.read(file, target, bytes, offset, 0);
  }

 private:
  CuFile() = default;
  std::string load(const CuFilePaths& paths);
  std::string forbid_copies(const CuFilePaths& paths) const;
  std::string start();

  void* library_ = nullptr;
  bool is_started_ = false;
  CuFileFunctions functions_;
};

}  // namespace streamer
