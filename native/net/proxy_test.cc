#include "net/proxy.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace streamer {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

// Sets variables for a test, and unsets all other proxy variables during the test.
class Environment {
 public:
  explicit Environment(const Values& values) {
    for (const char* name : kNames) {
      const char* const value = std::getenv(name);
      if (value != nullptr) before_.emplace_back(name, value);
      unsetenv(name);
    }
    for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* kNames[] = {"http_proxy",  "HTTP_PROXY", "https_proxy",
                                           "HTTPS_PROXY", "all_proxy",  "ALL_PROXY",
                                           "no_proxy",    "NO_PROXY",   "REQUEST_METHOD"};
  Values before_;
};

constexpr const char* kUrl = "http://server/a";
constexpr const char* kProxy = "http://user:password@proxy:3128";

TEST_CASE("the proxy is that of the option, else that of the environment, in upper or lower case") {
  const Environment none(Values{});
  CHECK(proxy_of(kUrl, "").empty());
  CHECK(proxy_of(kUrl, kProxy) == kProxy);
  for (const char* name : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) {
    CAPTURE(name);
    const Environment set(Values{{name, kProxy}});
    CHECK(proxy_of(kUrl, "") == kProxy);
    CHECK(proxy_of(kUrl, "http://named") == "http://named");
  }
  const Environment https(Values{{"HTTPS_PROXY", kProxy}});
  CHECK(proxy_of(kUrl, "").empty());
  CHECK(proxy_of("https://server/a", "") == kProxy);
}

TEST_CASE("a blank variable counts as unset") {
  const Environment set(Values{{"http_proxy", " "}, {"HTTP_PROXY", kProxy}, {"no_proxy", "\t"}});
  CHECK(proxy_of(kUrl, "") == kProxy);
  CHECK(hosts_without_proxy().empty());
}

TEST_CASE(
    "in a program of a web server, HTTP_PROXY is ignored, because a client may have sent it") {
  const Environment set(Values{{"HTTP_PROXY", kProxy}, {"REQUEST_METHOD", "GET"}});
  CHECK(proxy_of(kUrl, "").empty());
}

TEST_CASE("a route differs with each proxy, and with each NO_PROXY") {
  const Environment none(Values{});
  CHECK(route_to(kUrl, "") == 0);
  const std::size_t by_option = route_to(kUrl, kProxy);
  CHECK(by_option != 0);
  CHECK(route_to(kUrl, "http://another") != by_option);
  {
    const Environment set(Values{{"http_proxy", kProxy}});
    CHECK(route_to(kUrl, "") == by_option);
    CHECK(route_to("https://server/a", "") == 0);
  }
  const Environment set(Values{{"NO_PROXY", "server"}});
  CHECK(hosts_without_proxy() == "server");
  CHECK(route_to(kUrl, "") == 0);
  CHECK(route_to(kUrl, kProxy) != by_option);
}

}  // namespace
}  // namespace streamer
