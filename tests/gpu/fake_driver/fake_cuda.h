// A FAKE of NVIDIA's driver, for tests only: no GPU is behind it and nothing it does is fast.
//
// It has the symbols the engine looks up. "Device memory" is host memory; each stream is a thread
// that copies after a delay, so that a source that is reused too early shows as wrong bytes. It is
// stricter than the real driver: a copy from memory that is not pinned is refused, and what breaks
// a rule without an error code is counted by fake_cuda_violations(): memory that is freed while a
// copy reads it, and every call that might invalidate another thread's capture of a graph.
//
// The functions below steer it; the tests find them with dlsym.
#pragma once

#include <cstddef>

extern "C" {

// Back to: 2 devices, no delay, no failures, 1 GiB free. Only while no stream exists.
void fake_cuda_reset();
// As if CUDA_VISIBLE_DEVICES left this many.
void fake_cuda_set_devices(int count);
// How long each copy takes.
void fake_cuda_set_copy_delay_us(int microseconds);
// Copies are as fast as a link of this speed and take no processor, as a device's copy engine takes
// none: they move nothing. For benchmarks alone; 0: a processor copies.
void fake_cuda_set_link_mb_per_s(int speed);
// How long the driver takes to start.
void fake_cuda_set_start_delay_us(int microseconds);
void fake_cuda_set_free_bytes(std::size_t bytes);
// `function` returns `code` once it was called `after` times more, and from then on (`code` 0: no
// longer).
void fake_cuda_fail(const char* function, int code, int after);
// While the `after`-th copy from now runs, the device is lost: it and every later call answer
// `code`.
void fake_cuda_lose_device(int code, int after);
// No copy that has not begun begins before this is undone.
void fake_cuda_hold_copies(int is_held);
// These bytes are memory of that device. Memory of which nothing was said is device 0's.
void fake_cuda_place(const void* address, std::size_t bytes, int device);
// Puts a kernel on the stream that, after a delay, fills memory.
void fake_cuda_enqueue_fill(void* stream, void* address, std::size_t bytes, int value,
                            int delay_us);

int fake_cuda_calls(const char* function);
int fake_cuda_violations();
// The calling thread's: CUstreamCaptureMode.
int fake_cuda_capture_mode();
// What cudaMalloc of torch does: a capture minds it unless the thread relaxed its mode.
void fake_cuda_allocate_by_torch();
// Copies that were put on a stream and are not done.
int fake_cuda_copies_under_way();
std::size_t fake_cuda_pinned_bytes();
// Of memory that was left to a device on purpose.
void fake_cuda_forget_pinned();
int fake_cuda_live_streams();
int fake_cuda_live_events();
int fake_cuda_live_contexts();
}
