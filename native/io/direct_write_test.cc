#include "io/direct_write.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include "base/temporary_file_fixture.h"

namespace streamer {
namespace {

constexpr std::size_t kPart = std::size_t{3} << 20;  // more than one buffer

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string content(const TemporaryFile& file) {
  std::ifstream stream(file.path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST_CASE("parts are written completely in any order, at any address and with any end") {
  for (const bool is_direct : {false, true}) {
    for (const std::size_t tail : {std::size_t{0}, std::size_t{1}, std::size_t{4096 + 77}}) {
      const std::string data = random_data(2 * kPart + tail, 1);
      const TemporaryFile file("");
      REQUIRE(reserve_room(file.path(), data.size()) == 0);
      for (const std::size_t begin : {2 * kPart, std::size_t{0}, kPart}) {
        const std::string part = "x" + data.substr(begin, kPart);  // one byte off any alignment
        REQUIRE(write_part(file.path(), bytes_of(part).subspan(1), begin, is_direct) == 0);
      }
      CHECK(content(file) == data);
    }
  }
}

TEST_CASE("a missing file and a full disk are errors") {
  const std::string data = random_data(8192, 1);
  CHECK(write_part("/nowhere/at/all", bytes_of(data), 0, true) == ENOENT);
  CHECK(reserve_room("/nowhere/at/all", 1) == ENOENT);
  CHECK(write_part("/dev/full", bytes_of(data), 0, true) == ENOSPC);
  CHECK(write_part("/dev/full", bytes_of(data), 0, false) == ENOSPC);
}

TEST_CASE("reserved room is on the disk before anything is written") {
  const TemporaryFile file("");
  REQUIRE(reserve_room(file.path(), kPart) == 0);
  struct stat status {};
  REQUIRE(stat(file.path().c_str(), &status) == 0);
  CHECK(status.st_size == static_cast<off_t>(kPart));
}

}  // namespace
}  // namespace streamer
