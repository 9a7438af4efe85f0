// The C interface of Run:ai's model streamer, 0.17, on this engine. Names, types and numbers are
// given by its callers; docs/integrations/runai.md says what holds.
//
// No call crashes on null, a handle that was ended, or a number out of its bounds; it returns
// kInvalidParameter, or kFinished for an ended streamer. All of them may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#define STREAMER_RUNAI_EXPORT extern "C" __attribute__((visibility("default")))

struct RunaiDevice {
  int type;  // 0: memory of the host, the only one
  int id;
};

using RunaiListed = void (*)(const char* path, size_t size_bytes, void* caller_data);

STREAMER_RUNAI_EXPORT int runai_file_streamer_start(void** streamer);

// Stops all reading and returns when nothing writes to the caller's memory any more.
STREAMER_RUNAI_EXPORT void runai_file_streamer_end(void* streamer);

STREAMER_RUNAI_EXPORT int runai_file_streamer_set_credentials(void* streamer, const char** keys,
                                                              const char** values, unsigned count);

// Returns at once. The ranges of a file are those of its count, in the three flat tables.
STREAMER_RUNAI_EXPORT int runai_file_streamer_request(void* streamer, uint64_t* submission,
                                                      uint32_t file_count, const char** paths,
                                                      const uint32_t* range_counts,
                                                      const size_t* offsets, const size_t* sizes,
                                                      void* const* targets, RunaiDevice device);

// The code is that of one range; timeout_ms 0 waits until there is a response, or the end.
STREAMER_RUNAI_EXPORT int runai_file_streamer_response(void* streamer, uint64_t* submission,
                                                       uint32_t* file, uint32_t* range,
                                                       int* is_last, unsigned timeout_ms);

STREAMER_RUNAI_EXPORT const char* runai_file_streamer_response_str(int code);

// The distance of an address from its offset in the file should be a multiple of this: then direct
// reads land in place. Always set.
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
