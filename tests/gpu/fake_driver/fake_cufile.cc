#include "fake_cufile.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace {

// CU_FILE_DRIVER_NOT_INITIALIZED, CU_FILE_IO_NOT_SUPPORTED, CU_FILE_INVALID_FILE_OPEN_FLAG,
// CU_FILE_DRIVER_ALREADY_OPEN; and the number of the switch that allows copies.
constexpr int kNotInitialized = 5001;
constexpr int kUnsupported = 5008;
constexpr int kInvalidFlags = 5019;
constexpr int kAlreadyOpen = 5026;
constexpr unsigned kAllowCompatMode = 1;
// With the flag that 64-bit systems add unasked; the real library (1.14) refuses O_NONBLOCK.
constexpr int kFlags = O_RDONLY | O_DIRECT | 0100000;

struct State {
  std::mutex mutex;
  std::set<void*> files;
  int drivers = 0;
  bool may_copy = true;
  bool only_copies = false;
  bool refuses_files = false;
  int fails_after = INT_MAX;
  int fail_code = 0;
  long most_bytes = LONG_MAX;
  int reads = 0;
  int (*capture_mode)() = nullptr;
  int violations = 0;
};

State& state() {
  static auto* const made = new State();
  return *made;
}

// Called with the state's mutex held.
void check_no_capture_minds() {
  if (state().capture_mode != nullptr && state().capture_mode() != 2) ++state().violations;
}

// Registered under a descriptor of its own, without O_DIRECT: "device memory" need not be aligned.
struct FakeFile {
  int descriptor;
};

}  // namespace

extern "C" {

struct Status {
  int code;
  int cuda_code;
};

struct Description {
  int kind;
  union {
    int descriptor;
    void* pointer;
  } handle;
  const void* operations;
};

// For the next start alone, as the real library (1.14) has it.
Status cuFileSetParameterBool(unsigned number, bool value) {
  const std::lock_guard lock(state().mutex);
  if (state().drivers > 0) return {kAlreadyOpen, 0};
  if (number != kAllowCompatMode) ++state().violations;
  state().may_copy = value;
  return {0, 0};
}

Status cuFileDriverOpen() {
  const std::lock_guard lock(state().mutex);
  const bool may_copy = std::exchange(state().may_copy, true);
  if (state().only_copies && !may_copy) return {kNotInitialized, 0};
  ++state().drivers;
  return {0, 0};
}

Status cuFileDriverClose_v2() {
  const std::lock_guard lock(state().mutex);
  --state().drivers;
  if (!state().files.empty()) ++state().violations;
  return {0, 0};
}

Status cuFileHandleRegister(void** file, Description* description) {
  const int given = description->handle.descriptor;
  const std::lock_guard lock(state().mutex);
  check_no_capture_minds();
  const int flags = fcntl(given, F_GETFL);
  if (description->kind != 1 || (flags & O_DIRECT) == 0) ++state().violations;
  if ((flags & ~kFlags) != 0) return {kInvalidFlags, 0};
  if (state().refuses_files) return {kUnsupported, 0};
  const int own = open(("/proc/self/fd/" + std::to_string(given)).c_str(), O_RDONLY | O_CLOEXEC);
  *file = new FakeFile{own};
  state().files.insert(*file);
  return {0, 0};
}

void cuFileHandleDeregister(void* file) {
  const std::lock_guard lock(state().mutex);
  check_no_capture_minds();
  if (state().files.erase(file) == 0) {
    ++state().violations;
    return;
  }
  auto* const known = static_cast<FakeFile*>(file);
  close(known->descriptor);
  delete known;
}

ssize_t cuFileRead(void* file, void* base, std::size_t bytes, off_t file_offset,
                   off_t base_offset) {
  int descriptor = -1;
  {
    const std::lock_guard lock(state().mutex);
    ++state().reads;
    check_no_capture_minds();
    if (!state().files.contains(file)) {
      ++state().violations;
      return -kUnsupported;
    }
    if (state().fails_after-- <= 0) {
      errno = EIO;
      return state().fail_code == 0 ? -1 : -state().fail_code;
    }
    bytes = std::min(bytes, static_cast<std::size_t>(state().most_bytes));
    descriptor = static_cast<FakeFile*>(file)->descriptor;
  }
  return pread(descriptor, static_cast<char*>(base) + base_offset, bytes, file_offset);
}

void fake_cufile_reset() {
  const std::lock_guard lock(state().mutex);
  state().only_copies = false;
  state().refuses_files = false;
  state().fails_after = INT_MAX;
  state().fail_code = 0;
  state().most_bytes = LONG_MAX;
  state().reads = 0;
  state().violations = 0;
}

void fake_cufile_only_copies() {
  const std::lock_guard lock(state().mutex);
  state().only_copies = true;
}

void fake_cufile_refuse_files() {
  const std::lock_guard lock(state().mutex);
  state().refuses_files = true;
}

void fake_cufile_fail_reads(int after, int code) {
  const std::lock_guard lock(state().mutex);
  state().fails_after = after;
  state().fail_code = code;
}

void fake_cufile_limit_reads(long bytes) {
  const std::lock_guard lock(state().mutex);
  state().most_bytes = bytes;
}

void fake_cufile_watch_capture_mode(int (*mode)()) {
  const std::lock_guard lock(state().mutex);
  state().capture_mode = mode;
}

int fake_cufile_reads() {
  const std::lock_guard lock(state().mutex);
  return state().reads;
}

int fake_cufile_live_files() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().files.size());
}

int fake_cufile_live_drivers() {
  const std::lock_guard lock(state().mutex);
  return state().drivers;
}

int fake_cufile_violations() {
  const std::lock_guard lock(state().mutex);
  return state().violations;
}
}
