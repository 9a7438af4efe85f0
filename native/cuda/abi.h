// Types and numbers of NVIDIA's documented binary interfaces, under names of this project: the
// build needs no CUDA toolkit. tests/gpu/nvidia_headers.cc compares them, and the functions of
// CudaDriver and CuFile, with NVIDIA's headers.
#pragma once

#include <array>
#include <cstdint>

namespace streamer {

// CUresult
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaNotReady = 600;  // not an error: the work is not done yet
inline constexpr int kCudaNotSupported = 801;

inline constexpr unsigned kStreamNonBlocking = 1;     // does not wait for the default stream
inline constexpr unsigned kEventDisableTiming = 2;    // cheaper: the times of events are not used
inline constexpr unsigned kHostAllocPortable = 1;     // pinned for every device
inline constexpr unsigned kHostRegisterPortable = 1;  // pinned for every device
inline constexpr int kPointerAttributeDeviceOrdinal = 9;
inline constexpr int kCaptureModeGlobal = 0;  // CUstreamCaptureMode
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCopyInStreamOrder = 1;  // the source is read when the stream reaches the copy

// Pointers to objects of the driver, opaque here.
using CudaContextHandle = void*;
using CudaStreamHandle = void*;
using CudaEventHandle = void*;
using CudaAddress = std::uint64_t;

// cuGetProcAddress_v2: returns a function in the form that a certain version of CUDA had.
using CudaFindVersion = int(const char* symbol, void** function, int version, std::uint64_t flags,
                            int* status);

// CUmemcpyAttributes: the options of the copies of a batch. The hints about the place of memory
// only matter for managed memory.
struct CudaCopyAttributes {
  int source_order = kCopyInStreamOrder;
  std::array<int, 2> source_hint{};
  std::array<int, 2> target_hint{};
  unsigned flags = 0;
};

// CUfileError_t, returned by value: a code of libcufile, and a code of CUDA.
struct CuFileStatus {
  int code = 0;
  int cuda_code = 0;
};

inline constexpr int kCuFileOpaqueDescriptor = 1;      // a file descriptor of the system
inline constexpr unsigned kCuFileAllowCompatMode = 1;  // of CUFileBoolConfigParameter_t

// CUfileDescr_t
struct CuFileDescription {
  int kind = kCuFileOpaqueDescriptor;
  union {
    int descriptor;
    void* pointer;
  } handle{};
  const void* operations = nullptr;
};

}  // namespace streamer
