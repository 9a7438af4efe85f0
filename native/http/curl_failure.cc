#include "http/curl_failure.h"

#include <cstddef>
#include <memory>
#include <new>
#include <string_view>

#include "base/descriptors.h"
#include "net/name_lookup.h"

namespace streamer {
namespace {

// A name server that answered libcurl this fast will answer as fast again. A slower name server may
// have failed by time-out, and another lookup would block this thread as long.
constexpr double kPromptLookupS = 0.5;
constexpr std::size_t kLongestHeaderLineBytes = 100 << 10;  // libcurl's CURL_MAX_HTTP_HEADER

ErrorCode code_of(CURLcode result) {
  switch (result) {
    case CURLE_OPERATION_TIMEDOUT:
      return ErrorCode::kTimeout;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CERTPROBLEM:
      return ErrorCode::kTls;
    case CURLE_COULDNT_RESOLVE_HOST:
      return ErrorCode::kResolve;
    case CURLE_OUT_OF_MEMORY:
      return ErrorCode::kOutOfMemory;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
      return ErrorCode::kHttpStatus;  // final: another attempt cannot help
    default:
      return ErrorCode::kConnect;
  }
}

// libcurl accepts header lines of up to 100 KB, and 300 KB of headers in total. For a longer line,
// it reports that memory is exhausted. An allocation of the same size shows whether memory is
// really exhausted.
bool means_endless_headers(CURLcode result, std::string_view message) {
  if (result == CURLE_RECV_ERROR) return message.substr(0, 9) == "Too large";
#if LIBCURL_VERSION_NUM >= 0x080600
  if (result == CURLE_TOO_LARGE) return true;
#endif
  if (result != CURLE_OUT_OF_MEMORY) return false;
  const std::unique_ptr<char[]> another(new (std::nothrow) char[kLongestHeaderLineBytes]);
  return another != nullptr;
}

}  // namespace

ReadError error_of_curl(CURLcode result, const char* message, bool has_head, bool has_answered) {
  const char* text = message[0] != '\0' ? message : curl_easy_strerror(result);
  ReadError error = error_of(code_of(result), text);
  if (!has_head && means_endless_headers(result, text)) {
    error.code = ErrorCode::kEndlessHeaders;
    error.detail = "the headers of the server's answer do not end";
  } else if (error.detail.find("alert certificate required") != std::string::npos) {
    // In TLS 1.3, the server rejects a missing client certificate only after the handshake.
    error.code = ErrorCode::kTls;
  } else if (result == CURLE_SSL_CONNECT_ERROR && has_answered) {
    // The server's TLS worked before, so the connection broke.
    error.code = ErrorCode::kConnect;
  } else if (result == CURLE_UNSUPPORTED_PROTOCOL && has_answered) {
    // The server does speak HTTP, so these are bytes that an earlier response left.
    error.code = ErrorCode::kConnect;
  }
  return error;
}

void refine_connect_error(ReadError& error, const std::string& url, double elapsed_s,
                          bool may_look_up) {
  if (error.code != ErrorCode::kConnect && error.code != ErrorCode::kResolve) return;
  if (const int shortage = descriptor_shortage(); shortage != 0) {
    error.code = ErrorCode::kIo;
    error.os_error = shortage;
    error.is_of_proxy = false;
    error.detail = "no file descriptor is left for a connection";
  } else if (error.code == ErrorCode::kResolve && elapsed_s < kPromptLookupS && may_look_up) {
    error.code = look_up(host_of(url));
  }
}

}  // namespace streamer
