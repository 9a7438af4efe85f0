// NVIDIA's libcufile (GPUDirect Storage), found at run time: reads a local file straight into a
// device's memory, past this machine's.
//
// It is used only where its kernel module is loaded. Without that the library copies through memory
// of its own, which the pinned ring does better.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

namespace streamer {

// cufile.h's CUfileError_t, returned by value: a code of the library, and of CUDA.
struct CuFileStatus {
  int code = 0;
  int cuda_code = 0;
};

// cufile.h's CUfileDescr_t.
struct CuFileDescription {
  int kind = 1;  // a file descriptor
  union {
    int descriptor;
    void* pointer;
  } handle{};
  const void* operations = nullptr;
};

struct CuFilePaths {
  std::string library = "libcufile.so.0";
  std::string kernel_module = "/proc/driver/nvidia-fs/version";
};

class CuFile : public std::enable_shared_from_this<CuFile> {
 public:
  // Null, with the reason, where it cannot be used.
  static std::shared_ptr<const CuFile> open(const CuFilePaths& paths, std::string& reason);
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  // Makes a file known. Null where it could not be opened with O_DIRECT, or the library does not
  // support it. To be freed before the descriptor is closed.
  std::shared_ptr<void> add(int descriptor) const;

  // Waits until so many bytes from `offset` on are at `target`, on the current device. Returns how
  // many are, or a negative number.
  ssize_t read(void* file, std::byte* target, std::size_t bytes, off_t offset) const {
    return read_(file, target, bytes, offset, 0);
  }

 private:
  CuFile() = default;
  std::string start(const CuFilePaths& paths);

  void* library_ = nullptr;
  bool is_started_ = false;
  CuFileStatus (*driver_open_)() = nullptr;
  CuFileStatus (*driver_close_)() = nullptr;
  CuFileStatus (*add_)(void** file, CuFileDescription* description) = nullptr;
  void (*remove_)(void* file) = nullptr;
  ssize_t (*read_)(void* file, void* base, std::size_t bytes, off_t file_offset,
                   off_t base_offset) = nullptr;
};

}  // namespace streamer
