// The C interface of Run:ai's model streamer, 0.17, on this engine. Existing callers of that
// interface fix the names, types and numbers. docs/integrations/runai.md describes the supported
// features.
//
// No call crashes on null, on the handle of an ended streamer, or on a number out of bounds. It
// returns kInvalidParameter, or kFinished for an ended streamer. All calls are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#define STREAMER_RUNAI_EXPORT extern "C" __attribute__((visibility("default")))

struct RunaiDevice {
  int type;  // 0: host memory, the only supported type
  int id;
};

using RunaiListed = void (*)(const char* path, size_t size_bytes, void* caller_data);

STREAMER_RUNAI_EXPORT int runai_file_streamer_start(void** streamer);

// Stops all reading, and returns when no thread writes to the caller's memory any more.
STREAMER_RUNAI_EXPORT void runai_file_streamer_end(void* streamer);

STREAMER_RUNAI_EXPORT int runai_file_streamer_set_credentials(void* streamer, const char** keys,
                                                              const char** values, unsigned count);

// Returns at once. The three flat tables list the ranges of all files, one file after the other.
// `range_counts` has the number of ranges of each file.
STREAMER_RUNAI_EXPORT int runai_file_streamer_request(void* streamer, uint64_t* submission,
                                                      uint32_t file_count, const char** paths,
                                                      const uint32_t* range_counts,
                                                      const size_t* offsets, const size_t* sizes,
                                                      void* const* targets, RunaiDevice device);

// Returns the code of one range. If timeout_ms is 0, waits until there is a response or the
// streamer ends.
STREAMER_RUNAI_EXPORT int runai_file_streamer_response(void* streamer, uint64_t* submission,
                                                       uint32_t* file, uint32_t* range,
                                                       int* is_last, unsigned timeout_ms);

STREAMER_RUNAI_EXPORT const char* runai_file_streamer_response_str(int code);

// Sets `block_bytes`, also if the call fails. If an address and its offset in the file differ by a
// multiple of `block_bytes`, direct reads go straight into the caller's memory.
STREAMER_RUNAI_EXPORT int runai_file_streamer_probe_direct_block_size(void* streamer,
                                                                      const char** paths,
                                                                      unsigned count,
                                                                      size_t* block_bytes);

STREAMER_RUNAI_EXPORT int runai_file_streamer_list_files(void* streamer, const char* prefix,
                                                         int is_recursive, const char** allowed,
                                                         unsigned allowed_count,
                                                         const char** ignored,
                                                         unsigned ignored_count, RunaiListed listed,
                                                         void* caller_data);
