// NVIDIA's driver as a table of functions that are looked up at run time: one build serves machines
// with and without a GPU.
//
// Every error of the driver becomes a DeviceFailure with the driver's name of the error. NVIDIA's
// header maps the plain names of functions to those that end in _v2.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/read_error.h"
#include "cuda/abi.h"

namespace streamer {

class DeviceFailure : public std::runtime_error {
 public:
  explicit DeviceFailure(ReadError error) : std::runtime_error(error.detail), error_(error) {}

  const ReadError& error() const { return error_; }

 private:
  ReadError error_;
};

// Returns a failure with the code kDevice; `name` is the driver's name of the error.
DeviceFailure device_failure(std::string detail, std::string name);

struct CudaDriver {
  CudaDriver() = default;
  ~CudaDriver();
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  int (*init)(unsigned flags) = nullptr;
  int (*driver_version)(int* version) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_get)(int* device, int index) = nullptr;
  int (*device_name)(char* name, int size, int device) = nullptr;
  int (*context_retain)(CudaContextHandle* context, int device) = nullptr;
  int (*context_release)(int device) = nullptr;
  int (*context_push)(CudaContextHandle context) = nullptr;
  int (*context_pop)(CudaContextHandle* context) = nullptr;
  int (*host_alloc)(void** address, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_free)(void* address) = nullptr;
  int (*host_register)(void* address, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_unregister)(void* address) = nullptr;
  int (*stream_create)(CudaStreamHandle* stream, unsigned flags) = nullptr;
  int (*stream_destroy)(CudaStreamHandle stream) = nullptr;
  int (*stream_wait_event)(CudaStreamHandle stream, CudaEventHandle event,
                           unsigned flags) = nullptr;
  int (*stream_query)(CudaStreamHandle stream) = nullptr;
  // Sets the thread's capture mode to `mode`, and stores the previous mode in `mode`.
  int (*exchange_capture_mode)(int* mode) = nullptr;
  int (*copy_to_device)(CudaAddress to, const void* from, std::size_t bytes,
                        CudaStreamHandle stream) = nullptr;
  int (*event_create)(CudaEventHandle* event, unsigned flags) = nullptr;
  int (*event_destroy)(CudaEventHandle event) = nullptr;
  int (*event_record)(CudaEventHandle event, CudaStreamHandle stream) = nullptr;
  int (*event_query)(CudaEventHandle event) = nullptr;
  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes) = nullptr;
  int (*error_name)(int code, const char** text) = nullptr;
  int (*error_text)(int code, const char** text) = nullptr;
  // Null if the driver does not have them.
  int (*device_pci_id)(char* text, int size, int device) = nullptr;
  int (*pointer_attribute)(void* value, int attribute, CudaAddress address) = nullptr;
  int (*copy_batch)(CudaAddress* to, CudaAddress* from, std::size_t* bytes, std::size_t count,
                    CudaCopyAttributes* attributes, std::size_t* first_copies,
                    std::size_t attribute_count, std::size_t* failed,
                    CudaStreamHandle stream) = nullptr;

  // Throws DeviceFailure unless `code` is success; `action` completes "… failed".
  void check(int code, const std::string& action) const;
  std::string name_of(int code) const;

  // Whether this process is a child of the one that loaded the driver. The driver does not survive
  // fork(): the child must not call it, not even to free memory.
  bool is_forked() const;

  void* library = nullptr;
  pid_t owner = 0;
};

inline constexpr const char* kCudaLibrary = "libcuda.so.1";

// Opens the library, finds the functions and initialises the driver. Throws DeviceFailure.
std::shared_ptr<const CudaDriver> load_cuda_driver(const std::string& path);

}  // namespace streamer
