#include "http/proxy_refusal.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "http/loopback_server.h"
#include "http/request.h"

namespace streamer {
namespace {

constexpr const char* kPlain = "http://storage.invalid:81/a";
constexpr const char* kSecure = "https://storage.invalid/a";

LoopbackFault refuse(int) { return LoopbackFault::kUnavailable; }

std::string place_of(const LoopbackServer& proxy) {
  std::string place = proxy.url().substr(std::string("http://").size());
  return place.substr(0, place.find('/'));
}

// Sends a request through a proxy, and returns its error.
ReadError failure_of(const std::string& url, const std::string& proxy, ReadError error = {}) {
  start_libcurl();
  HttpTarget target;
  target.url = url;
  target.proxy = proxy;
  const EasyHandle easy(curl_easy_init());
  set_request(easy.get(), target, nullptr, nullptr, 5, false);
  const CURLcode result = curl_easy_perform(easy.get());
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  error.code = status == 0 ? ErrorCode::kConnect : ErrorCode::kHttpStatus;
  error.http_status = static_cast<int>(status);
  error.detail = curl_easy_strerror(result);
  blame_proxy(error, result, easy.get(), target);
  return error;
}

TEST_CASE("a refused tunnel is a failure of the proxy, which is named without its password") {
  const LoopbackServer proxy("", refuse);
  const ReadError error = failure_of(kSecure, "http://user:password@" + place_of(proxy));
  CHECK(error.is_of_proxy);
  CHECK(error.code == ErrorCode::kHttpStatus);
  CHECK(error.http_status == 503);
  CHECK(error.proxy == place_of(proxy));
  CHECK(error.detail == "the proxy " + place_of(proxy) + " refused to open a tunnel to the server");
}

TEST_CASE("a 503 over plain HTTP counts as the proxy's without a code or id of the storage") {
  const LoopbackServer proxy("", refuse);
  CHECK(failure_of(kPlain, proxy.url()).is_of_proxy);
  ReadError with_word;
  with_word.storage_code = "SlowDown";
  ReadError with_id;
  with_id.request_id = "1";
  for (const ReadError& error : {with_word, with_id}) {
    const ReadError noted = failure_of(kPlain, proxy.url(), error);
    CHECK_FALSE(noted.is_of_proxy);
    CHECK(noted.proxy == place_of(proxy));
  }
}

TEST_CASE("a failed connection to a proxy is reported as such") {
  std::string gone;
  {
    const LoopbackServer proxy("");
    gone = place_of(proxy);
  }
  for (const char* url : {kPlain, kSecure}) {
    const ReadError error = failure_of(url, gone);
    CHECK(error.is_of_proxy);
    CHECK(error.http_status == 0);
    CHECK(error.detail.starts_with("no connection to the proxy " + gone + ": "));
  }
  CHECK(failure_of(kPlain, "http://proxy.invalid:3128").proxy == "proxy.invalid:3128");
}

TEST_CASE("if NO_PROXY is set, the port of the connection shows whether a proxy was used") {
  const LoopbackServer server("", refuse);
  setenv("no_proxy", "127.0.0.1", 1);
  CHECK(failure_of(kPlain, server.url()).is_of_proxy);
  const ReadError direct = failure_of(server.url(), "http://proxy.invalid:3128");
  unsetenv("no_proxy");
  CHECK(direct.http_status == 503);
  CHECK_FALSE(direct.is_of_proxy);
  CHECK(direct.proxy.empty());
}

TEST_CASE("without a proxy, the error names none") {
  const LoopbackServer server("", refuse);
  const ReadError error = failure_of(server.url(), "");
  CHECK(error.http_status == 503);
  CHECK_FALSE(error.is_of_proxy);
  CHECK(error.proxy.empty());
}

}  // namespace
}  // namespace streamer
