#include "runai/file_streamer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <memory>
#include <vector>

#include "base/page_sizes.h"
#include "runai/codes.h"
#include "runai/interpreter.h"
#include "runai/streamers.h"

namespace streamer::runai {
namespace {

constexpr std::chrono::milliseconds kPollInterval{200};  // so that Ctrl-C takes less than a second

uint64_t number_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Python calls this function for each range, on a thread that holds the GIL. So it only takes locks
// whose holders never wait for the GIL.
void answer(uint64_t number, uint64_t submission, uint32_t file, uint32_t range, int code) {
  if (const auto found = Streamers::instance().find(number)) {
    found->responses.answer(submission, file, range, code);
  }
}

void answer_rest(uint64_t number, uint64_t submission, int code) {
  if (const auto found = Streamers::instance().find(number)) {
    found->responses.answer_rest(submission, code);
  }
}

template <typename... Numbers>
int call_python(const char* function, Numbers... numbers) {
  const Interpreter* const python = Interpreter::find();
  return python != nullptr ? python->call(function, numbers...) : static_cast<int>(kNoInterpreter);
}

// Turns every exception into a code, because callers of the library are written in C.
template <typename Call>
int guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::exception&) {
    return kUnknown;
  }
}

// Calls `call` with the streamer that the handle stands for.
template <typename Call>
int with_streamer(const void* handle, Call call) noexcept {
  return guarded([&]() -> int {
    const uint64_t number = number_of(handle);
    const std::shared_ptr<Streamer> found = Streamers::instance().find(number);
    if (found == nullptr) return Streamers::has_existed(number) ? kFinished : kInvalidParameter;
    return call(*found);
  });
}

int start(void** handle) {
  if (handle == nullptr) return kInvalidParameter;
  *handle = nullptr;
  const std::shared_ptr<Streamer> streamer = Streamers::instance().add();
  const int code = call_python("start", streamer->number, reinterpret_cast<uint64_t>(&answer),
                               reinterpret_cast<uint64_t>(&answer_rest));
  if (code == kSuccess) {
    *handle = reinterpret_cast<void*>(streamer->number);
  } else {
    Streamers::instance().remove(streamer->number);
  }
  return code;
}

bool are_texts(const char* const* texts, uint64_t count) {
  if (count > 0 && texts == nullptr) return false;
  for (uint64_t index = 0; index < count; ++index) {
    if (texts[index] == nullptr) return false;
  }
  return true;
}

struct Request {
  uint32_t file_count;
  const char** paths;
  const uint32_t* range_counts;
  const size_t* offsets;
  const size_t* sizes;
  void* const* targets;

  bool is_valid() const {
    if (!are_texts(paths, file_count) || (file_count > 0 && range_counts == nullptr)) return false;
    uint64_t total = 0;
    for (uint32_t file = 0; file < file_count; ++file) {
      if (*paths[file] == '\0') return false;
      total += range_counts[file];
    }
    if (total > 0 && (offsets == nullptr || sizes == nullptr || targets == nullptr)) return false;
    for (uint64_t range = 0; range < total; ++range) {
      if (sizes[range] > 0 && targets[range] == nullptr) return false;
    }
    return true;
  }

  int submit(Streamer& streamer, uint64_t& submission) const {
    const uint64_t number = streamer.responses.add({range_counts, range_counts + file_count});
    const int code = call_python("request", streamer.number, number, file_count, number_of(paths),
                                 number_of(range_counts), number_of(offsets), number_of(sizes),
                                 number_of(targets));
    if (code == kSuccess) {
      submission = number;
    } else {
      streamer.responses.withdraw(number);
    }
    return code;
  }
};

// Waits for a response as long as the caller allows, and polls for Ctrl-C in Python meanwhile. An
// interrupt is reported like the end of the streamer. The caller then leaves its loop, and Python
// raises KeyboardInterrupt.
int take_response(ResponseQueue& responses, unsigned timeout_ms, Response& response) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    auto slice = kPollInterval;
    if (timeout_ms > 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return kTimedOut;
      slice = std::min(slice, left);
    }
    const int code = responses.take(slice, response);
    if (code != kTimedOut) return code;
    const Interpreter* const python = Interpreter::find();
    if (python != nullptr && python->is_interrupted()) return kFinished;
  }
}

}  // namespace
}  // namespace streamer::runai

using namespace streamer::runai;

int runai_file_streamer_start(void** streamer) {
  return guarded([&] { return start(streamer); });
}

void runai_file_streamer_end(void* streamer) {
  guarded([&]() -> int {
    const std::shared_ptr<Streamer> ended = Streamers::instance().remove(number_of(streamer));
    if (ended == nullptr) return kFinished;
    ended->responses.stop();
    return call_python("end", ended->number);
  });
}

int runai_file_streamer_set_credentials(void* streamer, const char** keys, const char** values,
                                        unsigned count) {
  return with_streamer(streamer, [&](const Streamer& found) -> int {
    if (!are_texts(keys, count) || !are_texts(values, count)) return kInvalidParameter;
    return call_python("set_credentials", found.number, number_of(keys), number_of(values), count);
  });
}

int runai_file_streamer_request(void* streamer, uint64_t* submission, uint32_t file_count,
                                const char** paths, const uint32_t* range_counts,
                                const size_t* offsets, const size_t* sizes, void* const* targets,
                                RunaiDevice device) {
  return with_streamer(streamer, [&](Streamer& found) -> int {
    if (device.type != 0) return kUnsupportedDevice;
    const Request request = {file_count, paths, range_counts, offsets, sizes, targets};
    if (submission == nullptr || !request.is_valid()) return kInvalidParameter;
    return request.submit(found, *submission);
  });
}

int runai_file_streamer_response(void* streamer, uint64_t* submission, uint32_t* file,
                                 uint32_t* range, int* is_last, unsigned timeout_ms) {
  return with_streamer(streamer, [&](Streamer& found) -> int {
    if (!submission || !file || !range || !is_last) return kInvalidParameter;
    Response response;
    const int code = take_response(found.responses, timeout_ms, response);
    *submission = response.submission;
    *file = response.file;
    *range = response.range;
    *is_last = response.is_last ? 1 : 0;
    return code == kSuccess ? response.code : code;
  });
}

const char* runai_file_streamer_response_str(int code) { return text_of(code); }

int runai_file_streamer_probe_direct_block_size(void* streamer, const char** paths, unsigned count,
                                                size_t* block_bytes) {
  if (block_bytes == nullptr) return kInvalidParameter;
  *block_bytes = streamer::kDirectAlignmentBytes;
  return with_streamer(streamer, [&](const Streamer&) -> int {
    return are_texts(paths, count) ? kSuccess : kInvalidParameter;
  });
}

int runai_file_streamer_list_files(void* streamer, const char* prefix, int is_recursive,
                                   const char** allowed, unsigned allowed_count,
                                   const char** ignored, unsigned ignored_count, RunaiListed listed,
                                   void* caller_data) {
  return with_streamer(streamer, [&](const Streamer& found) -> int {
    if (prefix == nullptr || listed == nullptr) return kInvalidParameter;
    if (!are_texts(allowed, allowed_count) || !are_texts(ignored, ignored_count)) {
      return kInvalidParameter;
    }
    return call_python("list_files", found.number, number_of(prefix), is_recursive != 0,
                       number_of(allowed), allowed_count, number_of(ignored), ignored_count,
                       reinterpret_cast<uint64_t>(listed), number_of(caller_data));
  });
}
