// What can go wrong while bytes are read, as a value.
//
// The engine never throws across a thread and never prints: a reader returns a ReadError, the
// scheduler keeps the first one, and the Python layer turns it into a class of the public error
// tree by one table.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace streamer {

enum class ErrorCode : std::uint8_t {
  kNotFound,            // no such file, key or bucket
  kAccessDenied,        // known caller, refused
  kCredentials,         // wrong or unknown credentials
  kCredentialsExpired,  // right once; signing again may help
  kClockSkew,           // signed at a time that is not the server's; signing again may help
  kTruncated,           // fewer bytes than the object's size promised
  kChanged,             // another version than the one pinned
  kRangeResponse,       // the answer is not the range asked for
  kEndlessHeaders,      // the answer's headers are longer than libcurl takes
  kRedirect,            // a redirect, which signed requests never follow
  kHttpStatus,          // any other HTTP status
  kObjectFailure,       // the server fails to send this object, and sends others
  kConnect,             // refused, reset, closed early
  kResolve,             // no name server answered for the host's name
  kUnknownHost,         // the host's name does not exist
  kTls,                 // certificate or handshake
  kTimeout,             // connect, first byte or stall
  kLeavesFolder,        // a link leads out of the folder the caller wants to stay in
  kIo,                  // errno from the operating system
  kOutOfMemory,         // no memory for a destination
  kSource,              // a Python source raised; the exception is kept on the Python side
  kChecksum,            // the bytes are not those whose digest was expected
  kDevice,              // a GPU or its driver refused; storage_code is the name the driver gives
};

struct ReadError {
  ErrorCode code = ErrorCode::kIo;
  std::string detail;        // one sentence without secrets
  std::uint32_t source = 0;  // index of the object in the session
  std::uint64_t begin = 0;   // half-open byte range that was asked for
  std::uint64_t end = 0;
  int http_status = 0;              // 0 where there was no answer
  int os_error = 0;                 // errno, 0 where there was none
  bool is_at_redirect = false;      // a redirect named the place that was asked; it may be renewed
  bool is_of_object = false;        // the server answers for other objects
  bool is_of_proxy = false;         // the proxy refused, or may have: the server was not asked
  double retry_after_s = 0;         // the server's Retry-After, 0 where it sent none
  std::string storage_code;         // the storage's own word: NoSuchKey, SlowDown, ...
  std::string request_id;           // the storage's request id
  std::string proxy;                // "host:port" of the one that may have answered, or empty
  std::uint32_t item = UINT32_MAX;  // whose digest is wrong, with the next three
  std::string algorithm;
  std::string expected;  // hexadecimal digits
  std::string found;
  int attempts = 1;
  double elapsed_s = 0;
};

inline ReadError error_of(ErrorCode code, std::string detail, int os_error = 0) {
  ReadError error;
  error.code = code;
  error.detail = std::move(detail);
  error.os_error = os_error;
  return error;
}

}  // namespace streamer
