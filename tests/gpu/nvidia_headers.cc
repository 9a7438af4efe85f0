// Compares what native/gpu says of NVIDIA's driver and of libcufile with NVIDIA's own headers.
// There is nothing to run: it compiles where they agree.
//
// A function agrees when as many arguments, of the same sizes and kinds, are passed the same way:
// our names for its types are our own.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cufile.h>

#include <cstddef>
#include <type_traits>

#include "cuda/cufile.h"
#include "cuda/driver.h"

namespace streamer {
namespace {

template <typename Ours, typename Theirs>
constexpr bool passes_alike() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else {
    return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_class_v<Ours> == std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  }
}

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};

template <typename Our, typename... Ours, typename Their, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct Alike<Our (*)(Ours...), Their (*)(Theirs...)>
    : std::bool_constant<passes_alike<Our, Their>() && (passes_alike<Ours, Theirs>() && ...)> {};

// Of a check that accepts everything nothing would be learnt.
static_assert(!Alike<int (*)(int), int (*)(long)>::value);
static_assert(!Alike<int (*)(int), int (*)(int, int)>::value);
static_assert(!Alike<int (*)(std::uint64_t), int (*)(void*)>::value);

template <auto Member>
using TypeOf = std::remove_cvref_t<decltype(std::declval<CudaDriver>().*Member)>;
template <auto Member>
using CuFileTypeOf = std::remove_cvref_t<decltype(std::declval<CuFileFunctions>().*Member)>;

#define SAME_CUDA(member, symbol) \
  static_assert(Alike<TypeOf<&CudaDriver::member>, decltype(&symbol)>::value)
#define SAME_CUFILE(member, symbol) \
  static_assert(Alike<CuFileTypeOf<&CuFileFunctions::member>, decltype(&symbol)>::value)

SAME_CUDA(init, cuInit);
SAME_CUDA(driver_version, cuDriverGetVersion);
SAME_CUDA(device_count, cuDeviceGetCount);
SAME_CUDA(device_get, cuDeviceGet);
SAME_CUDA(device_name, cuDeviceGetName);
SAME_CUDA(context_retain, cuDevicePrimaryCtxRetain);
SAME_CUDA(context_release, cuDevicePrimaryCtxRelease_v2);
SAME_CUDA(context_push, cuCtxPushCurrent_v2);
SAME_CUDA(context_pop, cuCtxPopCurrent_v2);
SAME_CUDA(host_alloc, cuMemHostAlloc);
SAME_CUDA(host_free, cuMemFreeHost);
SAME_CUDA(host_register, cuMemHostRegister_v2);
SAME_CUDA(host_unregister, cuMemHostUnregister);
SAME_CUDA(stream_create, cuStreamCreate);
SAME_CUDA(stream_destroy, cuStreamDestroy_v2);
SAME_CUDA(stream_wait_event, cuStreamWaitEvent);
SAME_CUDA(stream_query, cuStreamQuery);
SAME_CUDA(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
SAME_CUDA(copy_to_device, cuMemcpyHtoDAsync_v2);
SAME_CUDA(event_create, cuEventCreate);
SAME_CUDA(event_destroy, cuEventDestroy_v2);
SAME_CUDA(event_record, cuEventRecord);
SAME_CUDA(event_query, cuEventQuery);
SAME_CUDA(memory_info, cuMemGetInfo_v2);
SAME_CUDA(error_name, cuGetErrorName);
SAME_CUDA(error_text, cuGetErrorString);
SAME_CUDA(device_pci_id, cuDeviceGetPCIBusId);
SAME_CUDA(pointer_attribute, cuPointerGetAttribute);
static_assert(Alike<TypeOf<&CudaDriver::copy_batch>, PFN_cuMemcpyBatchAsync_v12080>::value);
static_assert(Alike<CudaFindVersion*, decltype(&cuGetProcAddress_v2)>::value);

static_assert(kCudaSuccess == CUDA_SUCCESS);
static_assert(kCudaInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kPointerAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kCaptureModeGlobal == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(sizeof(CUstreamCaptureMode) == sizeof(int));  // passed by its address
static_assert(kCopyInStreamOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);

static_assert(sizeof(CudaCopyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(CudaCopyAttributes, source_order) ==
              offsetof(CUmemcpyAttributes, srcAccessOrder));
static_assert(offsetof(CudaCopyAttributes, source_hint) ==
              offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(CudaCopyAttributes, target_hint) ==
              offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(CudaCopyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));

SAME_CUFILE(set_switch, cuFileSetParameterBool);
SAME_CUFILE(driver_open, cuFileDriverOpen);
SAME_CUFILE(driver_close, cuFileDriverClose_v2);
SAME_CUFILE(add, cuFileHandleRegister);
SAME_CUFILE(remove, cuFileHandleDeregister);
SAME_CUFILE(read, cuFileRead);

static_assert(kCuFileAllowCompatMode == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
static_assert(kCuFileOpaqueDescriptor == CU_FILE_HANDLE_TYPE_OPAQUE_FD);
static_assert(sizeof(CuFileDescription) == sizeof(CUfileDescr_t));
static_assert(offsetof(CuFileDescription, kind) == offsetof(CUfileDescr_t, type));
static_assert(offsetof(CuFileDescription, handle) == offsetof(CUfileDescr_t, handle));
static_assert(offsetof(CuFileDescription, operations) == offsetof(CUfileDescr_t, fs_ops));
static_assert(offsetof(CuFileStatus, code) == offsetof(CUfileError_t, err));
static_assert(offsetof(CuFileStatus, cuda_code) == offsetof(CUfileError_t, cu_err));

}  // namespace
}  // namespace streamer
