// Checks that an nfs:// URL is refused with std::invalid_argument, or its parts are within their
// bounds. Also checks that its path does not influence the settings for libnfs.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "nfs/url.h"

namespace {

void require(bool is_true) {
  if (!is_true) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string url(reinterpret_cast<const char*>(data), size);
  streamer::NfsUrl parsed;
  try {
    parsed = streamer::parse_nfs_url(url);
  } catch (const std::invalid_argument&) {
    return 0;
  }
  require(!parsed.server.empty() && parsed.server.find('@') == std::string::npos);
  require(parsed.path.starts_with('/') && url.find(parsed.path) != std::string::npos);
  require(parsed.version == 3 || parsed.version == 4);
  require(parsed.nfs_port >= 0 && parsed.nfs_port <= 65535);
  require(parsed.mount_port >= 0 && parsed.mount_port <= 65535);

  streamer::NfsUrl without_path = parsed;
  without_path.path = "/";
  require(without_path.settings_for_libnfs() == parsed.settings_for_libnfs());
  return 0;
}
