// The errors of reading, as values.
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
  kAccessDenied,        // the credentials are valid, but do not allow this
  kCredentials,         // wrong or unknown credentials
  kCredentialsExpired,  // valid before; signing again may help
  kClockSkew,           // signed with a wrong clock; signing again may help
  kTruncated,           // fewer bytes than the object's size promised
  kChanged,             // another version than the one pinned
  kRangeResponse,       // the response is not the requested range
  kEndlessHeaders,      // the response's headers are longer than libcurl allows
  kRedirect,            // a redirect, which signed requests never follow
  kHttpStatus,          // any other HTTP status
  kObjectFailure,       // the server fails to send this object, but sends others
  kConnect,             // refused, reset, closed early
  kResolve,             // no name server answered for the host's name
  kUnknownHost,         // the host's name does not exist
  kTls,                 // certificate or handshake
  kTimeout,             // connect, first byte or stall
  kLeavesFolder,        // a link leads out of the folder that the caller allows
  kIo,                  // the operating system failed: see os_error
  kOutOfMemory,         // no memory for a tensor or for the engine
  kSource,              // a Python source raised; the exception is kept on the Python side
  kChecksum,            // the bytes do not have the expected digest
  kTampered,            // an encrypted piece does not have its authentication tag
  kDevice,              // a GPU or its driver refused; storage_code is the name the driver gives
};

struct ReadError {
  ErrorCode code = ErrorCode::kIo;
  std::string detail;        // one sentence without secrets
  std::uint32_t source = 0;  // index of the object in the session
  std::uint64_t begin = 0;   // half-open byte range that was requested
  std::uint64_t end = 0;
  int http_status = 0;              // 0 if there was no response
  int os_error = 0;                 // errno, or 0
  bool is_at_redirect = false;      // the URL came from a redirect, which may be requested again
  bool is_of_object = false;        // the server still serves other objects
  bool is_of_proxy = false;         // the proxy refused, or may have refused, the request
  double retry_after_s = 0;         // the server's Retry-After, or 0
  std::string storage_code;         // the storage's own error code: NoSuchKey, SlowDown, ...
  std::string request_id;           // the storage's request id
  std::string proxy;                // "host:port" of the proxy that may have answered, or empty
  std::uint32_t item = UINT32_MAX;  // the item with a wrong digest; the next three describe it
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
