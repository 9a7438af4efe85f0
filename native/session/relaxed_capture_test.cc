// No call of the engine may invalidate a capture of a CUDA graph. In every test, the fake driver
// counts each call that would do so as a violation. These tests show that the fake counts, and that
// the thread's mode is restored.
#include "cuda/relaxed_capture.h"

#include <doctest/doctest.h>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "session/device_session_fixture.h"

namespace streamer {
namespace {

constexpr int kCaptureModeThreadLocal = 1;

// Sets a mode that the consumer chose for this thread, until this object is destroyed.
class ConsumersMode {
 public:
  explicit ConsumersMode(const CudaDriver& driver) : driver_(driver) { exchange(); }
  ~ConsumersMode() { exchange(); }
  ConsumersMode(const ConsumersMode&) = delete;
  ConsumersMode& operator=(const ConsumersMode&) = delete;

 private:
  void exchange() { driver_.exchange_capture_mode(&mode_); }

  const CudaDriver& driver_;
  int mode_ = kCaptureModeThreadLocal;
};

TEST_CASE("a load disturbs no capture and restores its consumer's mode (regression)") {
  const FakeDriver fake;
  const auto device = CudaRuntime::instance().ring(0)->device();
  const ConsumersMode chosen(device->driver());
  const std::string data = random_data(1'000'000, 31);
  const TemporaryFile file(data);
  {
    Session session(options_with(4 * kBlockBytes));
    session.add_file(file.path(), data.size(), "");
    const Plan plan = plan_of(data.size(), 0);
    Consumer(session, plan).load(plan, data);
  }
  device->memory();
  CudaRuntime::instance().release_free();
  CHECK(fake.calls("cuEventQuery") > 0);
  CHECK(fake.calls("cuMemHostRegister_v2") > 0);
  CHECK(fake.calls("cuMemHostUnregister") > 0);
  CHECK(fake.violations() == 0);
  CHECK(fake.capture_mode() == kCaptureModeThreadLocal);
}

TEST_CASE("the fake driver notices a call that would invalidate a capture") {
  const FakeDriver fake;
  {
    const auto device = CudaRuntime::instance().ring(0)->device();
    const CurrentContext current(*device);
    const CudaStream stream(*device);
    CHECK(fake.capture_mode() == kCaptureModeRelaxed);
    int mode = kCaptureModeGlobal;
    device->driver().exchange_capture_mode(&mode);
    device->driver().stream_query(stream.handle());
    device->driver().exchange_capture_mode(&mode);
    CHECK(fake.violations() == 1);
  }
  fake.reset();  // forgets this violation
}

TEST_CASE("if the driver refuses to change the mode, the old mode stays") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  fake.fail("cuThreadExchangeStreamCaptureMode", 999, 0);
  {
    const RelaxedCapture relaxed(ring->device()->driver());
    fake.fail("cuThreadExchangeStreamCaptureMode", 0, 0);
  }
  CHECK(fake.capture_mode() == kCaptureModeGlobal);
}

}  // namespace
}  // namespace streamer
