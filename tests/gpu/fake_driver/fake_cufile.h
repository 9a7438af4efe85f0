// A FAKE of NVIDIA's libcufile, for tests only: no GPU and no GPUDirect Storage is behind it.
//
// It reads files into "device memory", which is this machine's (see fake_cuda.h). What breaks a
// rule of the library is counted by fake_cufile_violations(). The functions below steer it; the
// tests find them with dlsym.
#pragma once

extern "C" {

// Back to: nothing fails, nothing counted.
void fake_cufile_reset();
// As the library would without its kernel module: it starts only where it may copy.
void fake_cufile_only_copies();
// Files cannot be registered any more.
void fake_cufile_refuse_files();
// Reads fail after so many more: -1 with EIO (`code` 0), or with this code of the library.
void fake_cufile_fail_reads(int after, int code);
// A read returns at most so many bytes.
void fake_cufile_limit_reads(long bytes);

// Tells the calling thread's capture mode: one that is not relaxed is a violation wherever the real
// library may call the driver.
void fake_cufile_watch_capture_mode(int (*mode)());
int fake_cufile_reads();
int fake_cufile_live_files();
int fake_cufile_live_drivers();
int fake_cufile_violations();
}
