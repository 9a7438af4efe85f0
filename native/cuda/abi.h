// Types and numbers of NVIDIA's documented binary interfaces that this project uses, under its own
// names: no CUDA toolkit is needed to build it. tests/gpu/nvidia_headers.cc compares them, and the
// functions of CudaDriver and CuFile, with NVIDIA's headers.
#pragma once

#include <array>
#include <cstdint>

namespace streamer {

// CUresult
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaNotReady = 600;  // not an error, but "not yet"
inline constexpr int kCudaNotSupported = 801;

inline constexpr unsigned kStreamNonBlocking = 1;     // does not wait for the default stream
inline constexpr unsigned kEventDisableTiming = 2;    // cheaper, and unused
inline constexpr unsigned kHostAllocPortable = 1;     // for every device
inline constexpr unsigned kHostRegisterPortable = 1;  // as well
inline constexpr int kPointerAttributeDeviceOrdinal = 9;
inline constexpr int kCaptureModeGlobal = 0;  // CUstreamCaptureMode
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCopyInStreamOrder = 1;  // the source is read when the stream gets there

// Opaque to us, pointers to the driver.
using CudaContextHandle = void*;
using CudaStreamHandle = void*;
using CudaEventHandle = void*;
using CudaAddress = std::uint64_t;

// cuGetProcAddress_v2: the function of that name as it was in a version of CUDA.
using CudaFindVersion = int(const char* symbol, void** function, int version, std::uint64_t flags,
                            int* status);

// CUmemcpyAttributes: how copies of a batch are made. Where memory lies is hinted for managed
// memory alone.
struct CudaCopyAttributes {
  int source_order = kCopyInStreamOrder;
  std::array<int, 2> source_hint{};
  std::array<int, 2> target_hint{};
  unsigned flags = 0;
};

// CUfileError_t, returned by value: a code of libcufile's, and one of CUDA's.
struct CuFileStatus {
  int code = 0;
  int cuda_code = 0;
};

inline constexpr int kCuFileOpaqueDescriptor = 1;      // a file descriptor of the system's
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
