// Checks that the resolved path of a link is absolute and has no "..", whatever target a server
// sends. Input: the path of the link, a line end, its target.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "nfs/object.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\n');
  // The path of the link is always absolute and without "..", as in the server's own tree.
  const std::string path = "/export/" + std::string(input.substr(0, end));
  if (end == input.npos || (path + "/").find("/../") != path.npos) return 0;
  const auto resolved = streamer::path_behind_link(path, std::string(input.substr(end + 1)));
  if (resolved &&
      (!resolved->starts_with('/') || (*resolved + "/").find("/../") != resolved->npos)) {
    std::abort();
  }
  return 0;
}
