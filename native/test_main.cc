// Runs the native tests with doctest's options. The option --page-bytes=65536 sets another page
// size, which must be a multiple of the real one. This option must come first.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <string_view>

#include "base/page_sizes.h"

int main(int count, char** arguments) {
  constexpr std::string_view kPageBytes = "--page-bytes=";
  if (count > 1 && std::string_view(arguments[1]).starts_with(kPageBytes)) {
    const std::size_t page = std::strtoul(arguments[1] + kPageBytes.size(), nullptr, 10);
    streamer::replace_page_sizes({page, streamer::huge_page_bytes_for(page)});
  }
  return doctest::Context(count, arguments).run();
}
