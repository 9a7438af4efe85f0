// Wherever a server's link points, the path behind it is absolute and has no dots left to climb by.
// Input: the path of the link, a line end, its target.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "nfs/object.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\n');
  // What asks is always an absolute path without dots, as a server's own tree has it.
  const std::string path = "/export/" + std::string(input.substr(0, end));
  if (end == input.npos || (path + "/").find("/../") != path.npos) return 0;
  const auto resolved = streamer::path_behind_link(path, std::string(input.substr(end + 1)));
  if (resolved &&
      (!resolved->starts_with('/') || (*resolved + "/").find("/../") != resolved->npos)) {
    std::abort();
  }
  return 0;
}
