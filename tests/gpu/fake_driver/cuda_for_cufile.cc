// A FAKE of so much of NVIDIA's driver that NVIDIA's own libcufile runs over it, in the mode in
// which it reads files itself and has the driver copy (its "compatibility mode"); no GPU is here.
//
// To be preloaded: then it also stands for two files of the system that the library reads and a
// container lacks: /proc/modules, without which it never returns from its start, and what udev
// knows of the disk. "Device memory" is this machine's, and copies are done when they return.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

using Address = std::uint64_t;

constexpr int kNotFound = 500;
constexpr int kNotSupported = 801;
constexpr std::size_t kAlignment = 65'536;
constexpr std::size_t kAnyRange = std::size_t{1} << 30;  // of every pointer: nobody told which

int copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}

int allocate(void** memory, std::size_t bytes) {
  return posix_memalign(memory, kAlignment, bytes) == 0 ? 0 : 2;
}

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

// With a descriptor, as its readers take that.
FILE* text(std::string_view content) {
  FILE* const file = fdopen(memfd_create("fake", MFD_CLOEXEC), "w+");
  std::fwrite(content.data(), 1, content.size(), file);
  std::rewind(file);
  return file;
}

FILE* open_file(const char* name, const char* path, const char* mode) {
  const std::string_view given = path == nullptr ? "" : path;
  if (given == "/proc/modules") return text("ext4 1000000 2 - Live 0x0\n");
  if (given.starts_with("/run/udev/data/b")) {
    return text("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n");
  }
  return reinterpret_cast<FILE* (*)(const char*, const char*)>(dlsym(RTLD_NEXT, name))(path, mode);
}

}  // namespace

extern "C" {

FILE* fopen(const char* path, const char* mode) { return open_file("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_file("fopen64", path, mode); }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12080, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int size, int) { return std::snprintf(name, size, "fake"), 0; }
int cuDeviceGetUuid_v2(char* id, int) { return std::memset(id, 7, 16), 0; }
int cuDeviceGetPCIBusId(char* id, int size, int) {
  return std::snprintf(id, size, "0000:00:03.0"), 0;
}
// Those that are asked for are about what the device can do beside copies; the major version of its
// architecture (75) must be one that the library knows.
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = attribute == 75 ? 9 : 0, 0;
}

int cuDevicePrimaryCtxRetain(void** context, int) { return *context = pointer(1), 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxCreate_v2(void** context, unsigned, int) { return *context = pointer(1), 0; }
int cuCtxDestroy_v2(void*) { return 0; }
int cuCtxGetCurrent(void** context) { return *context = pointer(1), 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void** context) {
  if (context != nullptr) *context = pointer(1);
  return 0;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, 0; }

int cuMemAlloc_v2(Address* memory, std::size_t bytes) {
  return allocate(reinterpret_cast<void**>(memory), bytes);
}
int cuMemFree_v2(Address memory) { return std::free(pointer(memory)), 0; }
int cuMemAllocHost_v2(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) { return allocate(memory, bytes); }
int cuMemFreeHost(void* memory) { return std::free(memory), 0; }
int cuMemHostRegister_v2(void*, std::size_t, unsigned) { return 0; }
int cuMemHostUnregister(void*) { return 0; }
int cuMemHostGetDevicePointer_v2(Address* device, void* memory, unsigned) {
  return *device = reinterpret_cast<Address>(memory), 0;
}
int cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address address) {
  if (base != nullptr) *base = address;
  if (bytes != nullptr) *bytes = kAnyRange;
  return 0;
}

int cuMemcpy(Address to, Address from, std::size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}
int cuMemcpyAsync(Address to, Address from, std::size_t bytes, void*) {
  return copy(pointer(to), pointer(from), bytes);
}
int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  return copy(pointer(to), from, bytes);
}
int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void*) {
  return copy(pointer(to), from, bytes);
}
int cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  return copy(to, pointer(from), bytes);
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void*) {
  return copy(to, pointer(from), bytes);
}
int cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes) {
  return std::memset(pointer(to), value, bytes), 0;
}
int cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void*) {
  return std::memset(pointer(to), value, bytes), 0;
}

// CU_POINTER_ATTRIBUTE_…: every pointer is one of device 0's.
int cuPointerGetAttribute(void* value, int attribute, Address address) {
  switch (attribute) {
    case 1:
      return *static_cast<void**>(value) = pointer(1), 0;  // CONTEXT
    case 2:
      return *static_cast<unsigned*>(value) = 2, 0;  // MEMORY_TYPE: device
    case 3:
      return *static_cast<Address*>(value) = address, 0;  // DEVICE_POINTER
    case 7:
      return *static_cast<std::uint64_t*>(value) = 42, 0;  // BUFFER_ID
    case 11:
      return *static_cast<Address*>(value) = address, 0;  // RANGE_START_ADDR
    case 12:
      return *static_cast<std::size_t*>(value) = kAnyRange, 0;  // RANGE_SIZE
    default:
      return *static_cast<int*>(value) = 0, 0;
  }
}
int cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  for (unsigned i = 0; i < count; ++i) cuPointerGetAttribute(values[i], attributes[i], address);
  return 0;
}
int cuPointerSetAttribute(const void*, int, Address) { return 0; }

int cuStreamCreate(void** stream, unsigned) { return *stream = pointer(2), 0; }
int cuStreamCreateWithPriority(void** stream, unsigned, int) { return *stream = pointer(2), 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = pointer(3), 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 1, 0; }
int cuEventQuery(void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventSynchronize(void*) { return 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_A_FAKE", 0; }
int cuGetExportTable(const void**, const void*) { return kNotFound; }

// Looked for, and not called in this mode.
#define STREAMER_ABSENT(name) \
  int name() { return kNotSupported; }
STREAMER_ABSENT(cuCtxEnablePeerAccess)
STREAMER_ABSENT(cuDeviceCanAccessPeer)
STREAMER_ABSENT(cuIpcCloseMemHandle)
STREAMER_ABSENT(cuIpcGetEventHandle)
STREAMER_ABSENT(cuIpcGetMemHandle)
STREAMER_ABSENT(cuIpcOpenEventHandle)
STREAMER_ABSENT(cuIpcOpenMemHandle_v2)
STREAMER_ABSENT(cuLaunchHostFunc)
STREAMER_ABSENT(cuMemAllocManaged)
STREAMER_ABSENT(cuMemGetHandleForAddressRange)
STREAMER_ABSENT(cuMemcpyPeer)
STREAMER_ABSENT(cuMemcpyPeerAsync)
STREAMER_ABSENT(cuStreamWaitValue32)
STREAMER_ABSENT(cuStreamWaitValue32_v2)
STREAMER_ABSENT(cuStreamWriteValue32)
STREAMER_ABSENT(cuStreamWriteValue32_v2)
}
