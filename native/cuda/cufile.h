// NVIDIA's libcufile (GPUDirect Storage), loaded at run time: reads a local file straight into a
// device's memory, without a copy in host memory.
//
// It is used only if its kernel module is loaded. Without the module, and for files that it does
// not support, the library would copy through its own host memory, as the pinned ring does.
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
  // Belongs to the kernel module. A container sees the device only if it was passed in.
  std::string device = "/dev/nvidia-fs0";
  // If libcufile 1.15 cannot read this file, its start never returns.
  std::string modules = "/proc/modules";
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
  // Returns null and sets `reason` if the library cannot be used. If `may_copy` is false, the
  // library refuses every file that it would copy through its own host memory. If it is true, the
  // library's configuration decides.
  static std::shared_ptr<const CuFile> open(const CuFilePaths& paths, bool may_copy,
                                            std::string& reason);
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  // Registers a file with the library. Returns null with `code` 0 if the file is not open with
  // O_DIRECT, and null with the library's code if it refuses the file. The result must be freed
  // before the descriptor is closed.
  std::shared_ptr<void> add(int descriptor, int& code) const;

  // Reads `bytes` bytes from `offset` on into `target`, on the current device, and waits for them.
  // Returns the number of bytes read. A negative result is a code of the library, or -1 with errno.
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
