// Checks that the endpoint key of any URL contains no user, no password and no path.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "net/endpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view url(reinterpret_cast<const char*>(data), size);
  const std::string key = streamer::endpoint_key(url);
  const std::size_t scheme_end = key.find("://");
  const std::string_view authority =
      std::string_view(key).substr(scheme_end == std::string::npos ? 0 : scheme_end + 3);
  if (authority.find_first_of("@/?#") != std::string_view::npos) std::abort();
  return 0;
}
