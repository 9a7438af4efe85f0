#include "fake_cuda.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kCaptureModeRelaxed = 2;
constexpr std::size_t kDefaultFreeBytes = std::size_t{1} << 30;

struct Failure {
  int code = 0;
  int after = 0;
};

struct Range {
  std::size_t bytes = 0;
  int device = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 2;
  int copy_delay_us = 0;
  int link_mb_per_s = 0;  // 0: a processor copies
  int start_delay_us = 0;
  std::size_t free_bytes = kDefaultFreeBytes;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  int lost_code = 0;
  int lose_code = 0;
  int lose_after = 0;
  bool is_held = false;
  std::map<const char*, std::size_t> pinned;
  std::map<const char*, Range> placed;
  std::multimap<const char*, std::size_t> being_copied;  // sources of copies not done yet
  std::map<int, int> contexts;                           // device -> times retained
  int violations = 0;
  int streams = 0;
  int events = 0;
};

State& state() {
  static auto* const made = new State();  // outlives the threads of streams nobody destroyed
  return *made;
}

thread_local std::vector<std::uintptr_t> current;
thread_local int capture_mode = 0;  // "global", as every thread's at first

// Which of the driver's functions may not be called during a capture it does not say in full: here
// it is all that work on a device. Called with the state's mutex held.
void check_no_capture_minds() {
  if (capture_mode != kCaptureModeRelaxed) ++state().violations;
}

struct FakeEvent {
  int pending = 0;  // recordings not reached yet; guarded by the state's mutex
};

class FakeStream {
 public:
  FakeStream() : thread_([this] { run(); }) {}

  ~FakeStream() {
    push({});
    thread_.join();
  }

  void push(std::function<void()> work) {
    const std::lock_guard lock(state().mutex);
    queue_.push_back(std::move(work));
    state().changed.notify_all();
  }

  bool is_idle() {
    const std::lock_guard lock(state().mutex);
    return queue_.empty() && !is_working_;
  }

 private:
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(state().mutex);
        is_working_ = false;
        state().changed.wait(lock, [this] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
        is_working_ = true;
      }
      if (!work) return;
      work();
    }
  }

  std::deque<std::function<void()>> queue_;  // guarded by the state's mutex; empty work: the end
  bool is_working_ = false;                  // guarded by the state's mutex
  std::thread thread_;
};

// What a function answers before it does anything: a failure that was asked for, or a lost device.
int enter(const char* function, bool needs_context = true) {
  State& fake = state();
  const std::lock_guard lock(fake.mutex);
  ++fake.calls[function];
  if (needs_context) check_no_capture_minds();
  if (fake.lost_code != 0 && needs_context) return fake.lost_code;
  const auto found = fake.failures.find(function);
  if (found != fake.failures.end() && found->second.code != 0 && found->second.after-- <= 0) {
    return found->second.code;
  }
  if (needs_context && current.empty()) return kInvalidContext;
  return 0;
}

bool is_pinned(const char* address, std::size_t bytes) {
  auto next = state().pinned.upper_bound(address);
  if (next == state().pinned.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return address + bytes <= begin + size;
}

void sleep_us(int microseconds) {
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void run_copy(char* to, const char* from, std::size_t bytes) {
  State& fake = state();
  int delay_us = 0, link_mb_per_s = 0;
  {
    std::unique_lock lock(fake.mutex);
    fake.changed.wait(lock, [&fake] { return !fake.is_held; });
    delay_us = fake.copy_delay_us;
    link_mb_per_s = fake.link_mb_per_s;
    if (fake.lose_code != 0 && fake.lose_after-- <= 0) fake.lost_code = fake.lose_code;
  }
  if (link_mb_per_s > 0)
    delay_us += static_cast<int>(bytes / static_cast<std::size_t>(link_mb_per_s));
  sleep_us(delay_us);
  bool is_lost = false;
  {
    const std::lock_guard lock(fake.mutex);
    is_lost = fake.lost_code != 0;
  }
  if (!is_lost && link_mb_per_s == 0) std::memcpy(to, from, bytes);
  const std::lock_guard lock(fake.mutex);
  for (auto it = fake.being_copied.find(from); it != fake.being_copied.end(); ++it) {
    if (it->second != bytes) continue;
    fake.being_copied.erase(it);
    break;
  }
}

// Memory that is unlocked or freed while a copy reads it.
int unpin(void* address) {
  State& fake = state();
  const std::lock_guard lock(fake.mutex);
  const auto found = fake.pinned.find(static_cast<char*>(address));
  if (found == fake.pinned.end()) return kInvalidValue;
  for (const auto& [from, bytes] : fake.being_copied) {
    if (from >= found->first && from < found->first + found->second) ++fake.violations;
  }
  fake.pinned.erase(found);
  return 0;
}

const std::map<int, std::pair<const char*, const char*>>& errors() {
  static const auto* const known = new std::map<int, std::pair<const char*, const char*>>{
      {0, {"CUDA_SUCCESS", "no error"}},
      {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {4, {"CUDA_ERROR_DEINITIALIZED", "driver shutting down"}},
      {46, {"CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"}},
      {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {101, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {214, {"CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"}},
      {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {600, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {712, {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all already mapped"}},
      {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
      {801, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
      {999, {"CUDA_ERROR_UNKNOWN", "unknown error"}},
  };
  return *known;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  if (const int code = enter("cuInit", false)) return code;
  int delay_us = 0;
  {
    const std::lock_guard lock(state().mutex);
    delay_us = state().start_delay_us;
  }
  sleep_us(delay_us);
  const std::lock_guard lock(state().mutex);
  return state().devices == 0 ? 100 : 0;
}

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return enter("cuDriverGetVersion", false);
}

int cuDeviceGetCount(int* count) {
  if (const int code = enter("cuDeviceGetCount", false)) return code;
  const std::lock_guard lock(state().mutex);
  *count = state().devices;
  return 0;
}

int cuDeviceGet(int* device, int index) {
  if (const int code = enter("cuDeviceGet", false)) return code;
  const std::lock_guard lock(state().mutex);
  if (index < 0 || index >= state().devices) return kInvalidDevice;
  *device = index;
  return 0;
}

int cuDeviceGetName(char* name, int size, int) {
  if (const int code = enter("cuDeviceGetName", false)) return code;
  std::strncpy(name, "a fake device, not a GPU", static_cast<std::size_t>(size));
  return 0;
}

// No bus has this domain; the number of the device is that of its bus.
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  if (const int code = enter("cuDeviceGetPCIBusId", false)) return code;
  std::snprintf(text, static_cast<std::size_t>(size), "FAKE:%02X:00.0", device);
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const int code = enter("cuDevicePrimaryCtxRetain", false)) return code;
  const std::lock_guard lock(state().mutex);
  check_no_capture_minds();
  ++state().contexts[device];
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(state().mutex);
  ++state().calls["cuDevicePrimaryCtxRelease_v2"];
  check_no_capture_minds();
  if (--state().contexts[device] < 0) ++state().violations;
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  if (const int code = enter("cuCtxPushCurrent_v2", false)) return code;
  current.push_back(reinterpret_cast<std::uintptr_t>(context));
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = reinterpret_cast<void*>(current.back());
  current.pop_back();
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (const int code = enter("cuThreadExchangeStreamCaptureMode", false)) return code;
  std::swap(capture_mode, *mode);
  return 0;
}

int cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  if (const int code = enter("cuMemHostAlloc")) return code;
  *address = std::malloc(bytes);
  const std::lock_guard lock(state().mutex);
  state().pinned[static_cast<char*>(*address)] = bytes;
  return 0;
}

int cuMemFreeHost(void* address) {
  const int answer = enter("cuMemFreeHost");
  const int code = unpin(address);  // of a lost device too: its locks end with it
  if (code == 0) std::free(address);
  return answer != 0 ? answer : code;
}

int cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned) {
  if (const int code = enter("cuMemHostRegister_v2")) return code;
  const std::lock_guard lock(state().mutex);
  state().pinned[static_cast<char*>(address)] = bytes;
  return 0;
}

int cuMemHostUnregister(void* address) {
  const int answer = enter("cuMemHostUnregister");
  const int code = unpin(address);
  return answer != 0 ? answer : code;
}

int cuStreamCreate(void** stream, unsigned) {
  if (const int code = enter("cuStreamCreate")) return code;
  *stream = new FakeStream();
  const std::lock_guard lock(state().mutex);
  ++state().streams;
  return 0;
}

int cuStreamDestroy_v2(void* stream) {
  delete static_cast<FakeStream*>(stream);
  const std::lock_guard lock(state().mutex);
  check_no_capture_minds();
  --state().streams;
  return 0;
}

int cuStreamQuery(void* stream) {
  if (const int code = enter("cuStreamQuery")) return code;
  return stream == nullptr || static_cast<FakeStream*>(stream)->is_idle() ? 0 : kNotReady;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  if (const int code = enter("cuStreamWaitEvent")) return code;
  if (stream == nullptr) return kInvalidHandle;
  // As in CUDA, the event may be destroyed at once: the wait is for what was recorded by now.
  const auto waited = *static_cast<std::shared_ptr<FakeEvent>*>(event);
  static_cast<FakeStream*>(stream)->push([waited] {
    std::unique_lock lock(state().mutex);
    state().changed.wait(lock, [&waited] { return waited->pending == 0; });
  });
  return 0;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void* stream) {
  if (const int code = enter("cuMemcpyHtoDAsync_v2")) return code;
  const auto* source = static_cast<const char*>(from);
  {
    const std::lock_guard lock(state().mutex);
    if (!is_pinned(source, bytes)) return kInvalidValue;
    state().being_copied.emplace(source, bytes);
  }
  auto* target = reinterpret_cast<char*>(static_cast<std::uintptr_t>(to));
  static_cast<FakeStream*>(stream)->push(
      [target, source, bytes] { run_copy(target, source, bytes); });
  return 0;
}

namespace {

// Of CUDA 12.8, which tells which copy failed. Its attributes are not looked at.
int copy_batch(unsigned long long* to, unsigned long long* from, std::size_t* bytes,
               std::size_t count, void* attributes, std::size_t* first_copies,
               std::size_t attribute_count, std::size_t* failed, void* stream) {
  if (const int code = enter("cuMemcpyBatchAsync")) return code;
  const bool is_valid = count > 0 && attributes != nullptr && attribute_count == 1 &&
                        first_copies[0] == 0 && stream != nullptr;
  if (!is_valid) return kInvalidValue;
  for (std::size_t i = count; i-- > 0;) {  // in any order, so in one that nobody would expect
    const auto* source = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from[i]));
    *failed = i;
    if (const int code = cuMemcpyHtoDAsync_v2(to[i], source, bytes[i], stream)) return code;
  }
  return 0;
}

}  // namespace

int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long,
                        int*) {
  if (const int code = enter("cuGetProcAddress_v2", false)) return code;
  const bool is_known = std::strcmp(symbol, "cuMemcpyBatchAsync") == 0 && version == 12080;
  *function = is_known ? reinterpret_cast<void*>(&copy_batch) : nullptr;
  return is_known ? 0 : 500;
}

int cuEventCreate(void** event, unsigned) {
  if (const int code = enter("cuEventCreate")) return code;
  *event = new std::shared_ptr<FakeEvent>(std::make_shared<FakeEvent>());
  const std::lock_guard lock(state().mutex);
  ++state().events;
  return 0;
}

int cuEventDestroy_v2(void* event) {
  delete static_cast<std::shared_ptr<FakeEvent>*>(event);
  const std::lock_guard lock(state().mutex);
  check_no_capture_minds();
  --state().events;
  return 0;
}

int cuEventRecord(void* event, void* stream) {
  if (const int code = enter("cuEventRecord")) return code;
  if (stream == nullptr) return 0;  // the default stream: nothing is ever on it here
  const auto recorded = *static_cast<std::shared_ptr<FakeEvent>*>(event);
  {
    const std::lock_guard lock(state().mutex);
    ++recorded->pending;
  }
  static_cast<FakeStream*>(stream)->push([recorded] {
    const std::lock_guard lock(state().mutex);
    --recorded->pending;
    state().changed.notify_all();
  });
  return 0;
}

int cuEventQuery(void* event) {
  if (const int code = enter("cuEventQuery")) return code;
  const std::lock_guard lock(state().mutex);
  return (*static_cast<std::shared_ptr<FakeEvent>*>(event))->pending == 0 ? 0 : kNotReady;
}

int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (const int code = enter("cuMemGetInfo_v2")) return code;
  const std::lock_guard lock(state().mutex);
  *free_bytes = state().free_bytes;
  *total_bytes = kDefaultFreeBytes;
  return 0;
}

int cuPointerGetAttribute(void* value, int, unsigned long long address) {
  if (const int code = enter("cuPointerGetAttribute")) return code;
  const auto* wanted = reinterpret_cast<const char*>(static_cast<std::uintptr_t>(address));
  const std::lock_guard lock(state().mutex);
  int device = 0;
  for (const auto& [begin, range] : state().placed) {
    if (wanted >= begin && wanted < begin + range.bytes) device = range.device;
  }
  std::memcpy(value, &device, sizeof device);
  return 0;
}

int cuGetErrorName(int code, const char** text) {
  const auto found = errors().find(code);
  *text = found == errors().end() ? nullptr : found->second.first;
  return *text == nullptr ? kInvalidValue : 0;
}

int cuGetErrorString(int code, const char** text) {
  const auto found = errors().find(code);
  *text = found == errors().end() ? nullptr : found->second.second;
  return *text == nullptr ? kInvalidValue : 0;
}

void fake_cuda_reset() {
  State& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.devices = 2;
  fake.copy_delay_us = 0;
  fake.link_mb_per_s = 0;
  fake.start_delay_us = 0;
  fake.free_bytes = kDefaultFreeBytes;
  fake.failures.clear();
  fake.calls.clear();
  fake.lost_code = fake.lose_code = 0;
  fake.is_held = false;
  fake.placed.clear();
  fake.violations = 0;
  fake.changed.notify_all();
}

void fake_cuda_set_devices(int count) {
  const std::lock_guard lock(state().mutex);
  state().devices = count;
}

void fake_cuda_set_copy_delay_us(int microseconds) {
  const std::lock_guard lock(state().mutex);
  state().copy_delay_us = microseconds;
}

void fake_cuda_set_link_mb_per_s(int speed) {
  const std::lock_guard lock(state().mutex);
  state().link_mb_per_s = speed;
}

void fake_cuda_set_start_delay_us(int microseconds) {
  const std::lock_guard lock(state().mutex);
  state().start_delay_us = microseconds;
}

void fake_cuda_set_free_bytes(std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().free_bytes = bytes;
}

void fake_cuda_fail(const char* function, int code, int after) {
  const std::lock_guard lock(state().mutex);
  state().failures[function] = {code, after};
}

void fake_cuda_lose_device(int code, int after) {
  const std::lock_guard lock(state().mutex);
  state().lose_code = code;
  state().lose_after = after;
}

void fake_cuda_hold_copies(int is_held) {
  const std::lock_guard lock(state().mutex);
  state().is_held = is_held != 0;
  state().changed.notify_all();
}

void fake_cuda_place(const void* address, std::size_t bytes, int device) {
  const std::lock_guard lock(state().mutex);
  state().placed[static_cast<const char*>(address)] = {bytes, device};
}

void fake_cuda_enqueue_fill(void* stream, void* address, std::size_t bytes, int value,
                            int delay_us) {
  static_cast<FakeStream*>(stream)->push([address, bytes, value, delay_us] {
    sleep_us(delay_us);
    std::memset(address, value, bytes);
  });
}

int fake_cuda_calls(const char* function) {
  const std::lock_guard lock(state().mutex);
  return state().calls[function];
}

int fake_cuda_violations() {
  const std::lock_guard lock(state().mutex);
  return state().violations;
}

int fake_cuda_capture_mode() { return capture_mode; }

void fake_cuda_allocate_by_torch() {
  const std::lock_guard lock(state().mutex);
  check_no_capture_minds();
}

int fake_cuda_copies_under_way() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().being_copied.size());
}

std::size_t fake_cuda_pinned_bytes() {
  const std::lock_guard lock(state().mutex);
  std::size_t bytes = 0;
  for (const auto& [address, size] : state().pinned) bytes += size;
  return bytes;
}

void fake_cuda_forget_pinned() {
  const std::lock_guard lock(state().mutex);
  state().pinned.clear();
}

int fake_cuda_live_streams() {
  const std::lock_guard lock(state().mutex);
  return state().streams;
}

int fake_cuda_live_events() {
  const std::lock_guard lock(state().mutex);
  return state().events;
}

int fake_cuda_live_contexts() {
  const std::lock_guard lock(state().mutex);
  int live = 0;
  for (const auto& [device, times] : state().contexts) live += times;
  return live;
}
}
