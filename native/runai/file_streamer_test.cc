#include "runai/file_streamer.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "runai/codes.h"
#include "runai/streamers.h"

namespace streamer::runai {
namespace {

void* handle_of(uint64_t number) { return reinterpret_cast<void*>(number); }

TEST_CASE("a process without Python gets an error that says so") {
  void* streamer = handle_of(7);
  CHECK(runai_file_streamer_start(&streamer) == kNoInterpreter);
  CHECK(streamer == nullptr);
  CHECK(std::string(runai_file_streamer_response_str(kNoInterpreter)).find("no Python") !=
        std::string::npos);
}

TEST_CASE("wrong handles and pointers are refused, and nothing is written") {
  const std::array<void*, 3> wrong = {nullptr, handle_of(1'000'000), handle_of(~uint64_t{0})};
  for (void* const handle : wrong) {
    uint64_t submission = 99;
    uint32_t file = 99;
    uint32_t range = 99;
    int is_last = 99;
    CHECK(runai_file_streamer_request(handle, &submission, 0, nullptr, nullptr, nullptr, nullptr,
                                      nullptr, {0, 0}) == kInvalidParameter);
    CHECK(runai_file_streamer_response(handle, &submission, &file, &range, &is_last, 0) ==
          kInvalidParameter);
    CHECK(runai_file_streamer_set_credentials(handle, nullptr, nullptr, 0) == kInvalidParameter);
    CHECK(runai_file_streamer_list_files(handle, "/", 0, nullptr, 0, nullptr, 0, nullptr,
                                         nullptr) == kInvalidParameter);
    size_t block_bytes = 0;
    CHECK(runai_file_streamer_probe_direct_block_size(handle, nullptr, 0, &block_bytes) ==
          kInvalidParameter);
    CHECK(block_bytes == 4096);
    runai_file_streamer_end(handle);
    CHECK(submission == 99);
    CHECK(is_last == 99);
  }
  CHECK(runai_file_streamer_start(nullptr) == kInvalidParameter);
  CHECK(runai_file_streamer_probe_direct_block_size(nullptr, nullptr, 0, nullptr) ==
        kInvalidParameter);
}

TEST_CASE("requests that a streamer cannot serve are refused at once") {
  const auto streamer = Streamers::instance().add();
  void* const handle = handle_of(streamer->number);
  uint64_t submission = 99;
  const char* path = "/there";
  const char* empty = "";
  const char* none = nullptr;
  const uint32_t one = 1;
  const size_t offset = 0;
  const size_t size = 4;
  void* const nowhere = nullptr;
  std::array<char, 4> memory{};
  void* const target = memory.data();
  const auto ask = [&](const char** paths, const size_t* sizes, void* const* targets, int device) {
    return runai_file_streamer_request(handle, &submission, 1, paths, &one, &offset, sizes, targets,
                                       {device, 0});
  };
  CHECK(ask(&path, &size, &target, 1) == kUnsupportedDevice);
  CHECK(ask(&path, &size, &nowhere, 0) == kInvalidParameter);
  CHECK(ask(&path, nullptr, &target, 0) == kInvalidParameter);
  CHECK(ask(&none, &size, &target, 0) == kInvalidParameter);
  CHECK(ask(&empty, &size, &target, 0) == kInvalidParameter);
  CHECK(ask(nullptr, &size, &target, 0) == kInvalidParameter);
  CHECK(ask(&path, &size, &target, 0) == kNoInterpreter);
  CHECK(submission == 99);
  uint32_t file = 0;
  uint32_t range = 0;
  int is_last = 0;
  CHECK(runai_file_streamer_response(handle, &submission, &file, &range, &is_last, 1) == kTimedOut);
  runai_file_streamer_end(handle);
  CHECK(runai_file_streamer_response(handle, &submission, &file, &range, &is_last, 0) == kFinished);
}

TEST_CASE("every code has a text") {
  for (int code = -2; code < 200; ++code) {
    CHECK(std::string(runai_file_streamer_response_str(code)) != "");
  }
  CHECK(std::string(runai_file_streamer_response_str(kEndOfFile)).find("End of file") == 0);
}

}  // namespace
}  // namespace streamer::runai
