#include "cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <utility>

namespace streamer {
namespace {

template <typename Function>
void find(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
}

template <typename Function>
void require(void* library, const char* symbol, Function*& function) {
  find(library, symbol, function);
  if (function == nullptr) {
    throw device_failure(std::string("the CUDA driver is too old: it has no ") + symbol,
                         "CUDA_ERROR_NOT_FOUND");
  }
}

// Returns the function in the form of CUDA 12.8: later versions of the same name take other
// arguments.
void find_copy_batch(CudaDriver& driver) {
  constexpr int kVersion = 12080;
  CudaFindVersion* find_version = nullptr;
  find(driver.library, "cuGetProcAddress_v2", find_version);
  if (find_version == nullptr) return;
  void* function = nullptr;
  int status = 0;
  if (find_version("cuMemcpyBatchAsync", &function, kVersion, 0, &status) != kCudaSuccess) return;
  driver.copy_batch = reinterpret_cast<decltype(driver.copy_batch)>(function);
}

void find_functions(CudaDriver& driver) {
  void* const library = driver.library;
  require(library, "cuInit", driver.init);
  require(library, "cuDriverGetVersion", driver.driver_version);
  require(library, "cuDeviceGetCount", driver.device_count);
  require(library, "cuDeviceGet", driver.device_get);
  require(library, "cuDeviceGetName", driver.device_name);
  require(library, "cuDevicePrimaryCtxRetain", driver.context_retain);
  require(library, "cuDevicePrimaryCtxRelease_v2", driver.context_release);
  require(library, "cuCtxPushCurrent_v2", driver.context_push);
  require(library, "cuCtxPopCurrent_v2", driver.context_pop);
  require(library, "cuMemHostAlloc", driver.host_alloc);
  require(library, "cuMemFreeHost", driver.host_free);
  require(library, "cuMemHostRegister_v2", driver.host_register);
  require(library, "cuMemHostUnregister", driver.host_unregister);
  require(library, "cuStreamCreate", driver.stream_create);
  require(library, "cuStreamDestroy_v2", driver.stream_destroy);
  require(library, "cuStreamWaitEvent", driver.stream_wait_event);
  require(library, "cuStreamQuery", driver.stream_query);
  require(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  require(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device);
  require(library, "cuEventCreate", driver.event_create);
  require(library, "cuEventDestroy_v2", driver.event_destroy);
  require(library, "cuEventRecord", driver.event_record);
  require(library, "cuEventQuery", driver.event_query);
  require(library, "cuMemGetInfo_v2", driver.memory_info);
  require(library, "cuGetErrorName", driver.error_name);
  require(library, "cuGetErrorString", driver.error_text);
  find(library, "cuDeviceGetPCIBusId", driver.device_pci_id);
  find(library, "cuPointerGetAttribute", driver.pointer_attribute);
  find_copy_batch(driver);
}

}  // namespace

DeviceFailure device_failure(std::string detail, std::string name) {
  ReadError error;
  error.code = ErrorCode::kDevice;
  error.detail = std::move(detail);
  error.storage_code = std::move(name);
  return DeviceFailure(std::move(error));
}

CudaDriver::~CudaDriver() {
  if (library != nullptr) dlclose(library);
}

std::string CudaDriver::name_of(int code) const {
  const char* name = nullptr;
  if (error_name(code, &name) != kCudaSuccess || name == nullptr) {
    return "CUDA error " + std::to_string(code);
  }
  return name;
}

void CudaDriver::check(int code, const std::string& action) const {
  if (code == kCudaSuccess) return;
  const char* text = nullptr;
  if (error_text(code, &text) != kCudaSuccess || text == nullptr) text = "an unknown error";
  throw device_failure(action + " failed: " + text, name_of(code));
}

bool CudaDriver::is_forked() const { return getpid() != owner; }

std::shared_ptr<const CudaDriver> load_cuda_driver(const std::string& path) {
  auto driver = std::make_shared<CudaDriver>();
  driver->owner = getpid();
  driver->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver->library == nullptr) {
    const char* reason = dlerror();
    throw device_failure(
        std::string("there is no CUDA driver here: ") + (reason == nullptr ? path : reason),
        "CUDA_ERROR_NOT_FOUND");
  }
  find_functions(*driver);
  driver->check(driver->init(0), "starting the CUDA driver");
  return driver;
}

}  // namespace streamer
