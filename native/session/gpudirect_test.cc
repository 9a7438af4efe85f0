// Files that go straight to a device, with fakes of the driver and of libcufile. These tests do not
// prove that the real libraries behave in the same way.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "session/device_session_fixture.h"

namespace streamer {
namespace {

// Replacements for the file and the device of the kernel module, and for the list of all modules.
constexpr const char* kAnyFile = "/proc/self/status";
constexpr const char* kAnyDevice = "/dev/null";

class FakeCuFile {
 public:
  explicit FakeCuFile(const FakeDriver& driver)
      : library_(dlopen(STREAMER_FAKE_CUFILE, RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE(library_ != nullptr);
    find("fake_cufile_reset", reset);
    find("fake_cufile_only_copies", only_copies);
    find("fake_cufile_refuse_files", refuse_files);
    find("fake_cufile_fail_reads", fail_reads);
    find("fake_cufile_limit_reads", limit_reads);
    find("fake_cufile_watch_capture_mode", watch_capture_mode);
    find("fake_cufile_reads", reads);
    find("fake_cufile_live_files", live_files);
    find("fake_cufile_live_drivers", live_drivers);
    find("fake_cufile_violations", violations);
    reset();
    watch_capture_mode(driver.capture_mode);
    CudaRuntime::instance().use_cufile_for_tests(
        {STREAMER_FAKE_CUFILE, kAnyFile, kAnyDevice, kAnyFile});
  }
  ~FakeCuFile() {
    CudaRuntime::instance().use_cufile_for_tests({});
    CHECK(live_files() == 0);
    CHECK(live_drivers() == 0);
    CHECK(violations() == 0);
  }

  void (*reset)() = nullptr;
  void (*only_copies)() = nullptr;
  void (*refuse_files)() = nullptr;
  void (*fail_reads)(int after, int code) = nullptr;
  void (*limit_reads)(long bytes) = nullptr;
  void (*watch_capture_mode)(int (*mode)()) = nullptr;
  int (*reads)() = nullptr;
  int (*live_files)() = nullptr;
  int (*live_drivers)() = nullptr;
  int (*violations)() = nullptr;

 private:
  template <typename Function>
  void find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    const bool is_found = function != nullptr;
    REQUIRE(is_found);
  }

  void* library_;
};

SessionOptions straight_options(std::optional<bool> gpudirect = std::nullopt) {
  SessionOptions options = options_with(4 * kBlockBytes);
  options.gpudirect = gpudirect;
  return options;
}

// Loads 2 MB to device 0 and checks every byte. Returns how many bytes went straight to the device.
std::uint64_t load_straight(const SessionOptions& options = straight_options(),
                            bool is_direct = true) {
  const std::string data = random_data(2'000'000, 21);
  const TemporaryFile file(data);
  Session session(options);
  session.add_file(file.path(), data.size(), "", {.is_direct = is_direct});
  const Plan plan = plan_of(data.size(), 0);
  Consumer(session, plan).load(plan, data);
  session.close();
  CHECK(session.stats().scheduler.bytes_delivered == data.size());
  return session.stats().scheduler.gpudirect_bytes;
}

TEST_CASE("a file that is read past the page cache goes straight to its device") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  CHECK(load_straight() == 2'000'000);
  CHECK(driver.calls("cuMemcpyHtoDAsync_v2") == 0);
  CHECK(library.reads() > 0);
}

TEST_CASE("a read that returns fewer bytes than requested is continued at its end") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  library.limit_reads(4'999);
  CHECK(load_straight() == 2'000'000);
}

TEST_CASE("a cached file goes through the ring, and so does every file if GPUDirect is off") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  CHECK(load_straight(straight_options(), false) == 0);
  CHECK(load_straight(straight_options(false)) == 0);
  CHECK(library.reads() == 0);
}

TEST_CASE("a library that only copies by itself is used if the caller allows copies") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  library.only_copies();
  CHECK(load_straight() == 0);
  CHECK(library.live_drivers() == 0);
  CHECK(CudaRuntime::instance().gpudirect(false).reason ==
        "libcufile cannot start: its code is 5001");
  CHECK(load_straight(straight_options(true)) == 2'000'000);
  CHECK(load_straight() == 0);
}

TEST_CASE("a library that reads straight is also used if the caller allows copies") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  CHECK(load_straight(straight_options(true)) == 2'000'000);
  CHECK(load_straight() == 2'000'000);
  CHECK(library.live_drivers() == 1);
}

TEST_CASE("a library that other code started may copy, and is used if the caller allows copies") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  std::string reason;
  const auto others =
      CuFile::open({STREAMER_FAKE_CUFILE, kAnyFile, kAnyDevice, kAnyFile}, true, reason);
  CHECK(load_straight() == 0);
  CHECK(CudaRuntime::instance().gpudirect(false).reason ==
        "libcufile cannot forbid copies: its code is 5026");
  CHECK(load_straight(straight_options(true)) == 2'000'000);
}

TEST_CASE("a file that the library does not support goes through the ring") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  library.refuse_files();
  CHECK(load_straight() == 0);
  CHECK(library.reads() == 0);
}

TEST_CASE("bytes that the library fails to read are read through the ring") {
  const FakeDriver driver;
  for (const int code : {0, 5'030}) {
    const FakeCuFile library(driver);
    library.fail_reads(9, code);
    const std::uint64_t straight = load_straight();
    CHECK(straight > 0);
    CHECK(straight < 2'000'000);
  }
}

TEST_CASE("without the kernel module, its device, or the library, the ring is used") {
  const FakeDriver driver;
  CudaRuntime& runtime = CudaRuntime::instance();
  const auto problem_of = [&runtime](CuFilePaths paths) {
    runtime.use_cufile_for_tests(std::move(paths));
    CHECK(load_straight() == 0);
    return runtime.gpudirect(false).reason;
  };
  CHECK(problem_of({STREAMER_FAKE_CUFILE, "/nonexistent", kAnyDevice, kAnyFile}) ==
        "the kernel module nvidia-fs is not loaded");
  CHECK(problem_of({STREAMER_FAKE_CUFILE, kAnyFile, "/nonexistent", kAnyFile}) ==
        "/nonexistent cannot be used: No such file or directory");
  CHECK(problem_of({STREAMER_FAKE_CUFILE, kAnyFile, kAnyDevice, "/nonexistent"}) ==
        "/nonexistent cannot be read, but libcufile needs it to start");
  CHECK(problem_of({"libcufile-that-nobody-has.so.0", kAnyFile, kAnyDevice, kAnyFile}) ==
        "libcufile-that-nobody-has.so.0 is not installed");
  CHECK(problem_of({"libc.so.6", kAnyFile, kAnyDevice, kAnyFile}) == "libc.so.6 lacks a function");
  runtime.use_cufile_for_tests({});
}

TEST_CASE("with digests, which need the bytes on this machine, the ring is used") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  const std::string data = random_data(200'000, 22);
  const TemporaryFile file(data);
  Plan plan = plan_of(data.size(), 0);
  plan.digests.items.resize(plan.items.size());
  plan.digests.cuts.resize(1);
  Session session(straight_options());
  session.add_file(file.path(), data.size(), "", {.is_direct = true});
  Consumer(session, plan).load(plan, data);
  CHECK(session.stats().scheduler.gpudirect_bytes == 0);
}

TEST_CASE("no byte is read into memory that the consumer's stream may still use") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  const std::string data = random_data(kItemBytes, 23);
  const TemporaryFile file(data);
  BusyTarget target(driver, data.size(), 100'000);
  Session session(straight_options());
  session.add_file(file.path(), data.size(), "", {.is_direct = true});
  const Plan plan = target.plan();
  session.start(plan, target.streams());
  Consumer consumer(session, plan);
  consumer.read_all();
  REQUIRE(!consumer.error);
  CHECK(target.settled() == data);
  CHECK(session.stats().scheduler.gpudirect_bytes == data.size());
}

TEST_CASE("a load that is closed while it waits for the consumer's stream ends") {
  const FakeDriver driver;
  const FakeCuFile library(driver);
  const std::string data = random_data(kItemBytes, 24);
  const TemporaryFile file(data);
  BusyTarget target(driver, data.size(), 600'000);
  Session session(straight_options());
  session.add_file(file.path(), data.size(), "", {.is_direct = true});
  const Plan plan = target.plan();
  session.start(plan, target.streams());
  const TimePoint began = Clock::now();
  session.close();
  CHECK(seconds_between(began, Clock::now()) < 1);
  CHECK(library.reads() == 0);
}

TEST_CASE("a device that fails ends a straight load with the driver's name of the error") {
  FakeDriver driver;
  const FakeCuFile library(driver);
  const std::string data = random_data(2'000'000, 25);
  const TemporaryFile file(data);
  const Plan plan = plan_of(data.size(), 0);
  driver.fail("cuEventQuery", 700, 0);
  Session session(straight_options());
  session.add_file(file.path(), data.size(), "", {.is_direct = true});
  Consumer consumer(session, plan);
  session.start(plan);
  consumer.read_all();
  session.close();  // before the consumer frees the targets
  REQUIRE(consumer.error);
  CHECK(consumer.error->storage_code == "CUDA_ERROR_ILLEGAL_ADDRESS");
}

}  // namespace
}  // namespace streamer
