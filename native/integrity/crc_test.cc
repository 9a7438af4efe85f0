#include "integrity/crc.h"

#include <doctest/doctest.h>

#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace streamer {
namespace {

constexpr Crc kAll[] = {Crc::kCrc32, Crc::kCrc32c, Crc::kCrc64Nvme};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string random_text(std::size_t size) {
  std::mt19937 random(7);
  std::string text(size, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

// All subsets of the instructions that this processor has, including none.
std::vector<CrcInstructions> every_choice() {
  const CrcInstructions& all = crc_instructions();
  return {all, {all.multiplies_polynomials, false}, {false, all.computes_crc32}, {}};
}

// The features of this processor, as the system lists them. Empty under an emulator, because the
// system there lists the features of the real machine.
std::string listed_features() {
#if defined(__aarch64__)
  constexpr std::string_view kName = "Features";
#else
  constexpr std::string_view kName = "flags";
#endif
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kName)) return line + " ";
  }
  return "";
}

TEST_CASE("the engine detects the instructions of the processor" *
          doctest::skip(listed_features().empty())) {
  const std::string features = listed_features();
  const bool multiplies = features.find(" pclmulqdq ") != std::string::npos ||
                          features.find(" pmull ") != std::string::npos;
  CHECK(crc_instructions().multiplies_polynomials == multiplies);
  CHECK(crc_instructions().computes_crc32 == (features.find(" crc32 ") != std::string::npos));
}

TEST_CASE("the published check values") {
  // The values of "123456789" are from Koopman's catalogue and the reveng catalogue; those of 32
  // bytes are from RFC 3720 §B.4.
  struct Row {
    Crc code;
    std::string text;
    std::uint64_t value;
  };
  std::string ascending(32, '\0');
  for (std::size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<char>(i);
  const std::vector<Row> rows = {
      {Crc::kCrc32, "123456789", 0xCBF43926},
      {Crc::kCrc32c, "123456789", 0xE3069283},
      {Crc::kCrc64Nvme, "123456789", 0xAE8B14860A799888},
      {Crc::kCrc32c, std::string(32, '\0'), 0x8A9136AA},
      {Crc::kCrc32c, std::string(32, '\xff'), 0x62A8AB43},
      {Crc::kCrc32c, ascending, 0x46DD794E},
      {Crc::kCrc32, "", 0},
      {Crc::kCrc64Nvme, std::string(4096, '\0'), 0x6482D367EB22B64E},  // from the specification
      {Crc::kCrc64Nvme, std::string(4096, '\xff'), 0xC0DDBA7302ECA3AC},
  };
  for (const Row& row : rows) {
    for (const CrcInstructions& allowed : every_choice()) {
      CHECK(compute(row.code, bytes_of(row.text), 0, allowed) == row.value);
    }
  }
}

TEST_CASE("multiplication, instructions and tables agree at every size and alignment") {
  const std::string text = random_text(700);
  for (const Crc code : kAll) {
    for (std::size_t begin = 0; begin < 17; ++begin) {
      for (std::size_t size = 0; begin + size <= text.size(); ++size) {
        const auto data = bytes_of(text).subspan(begin, size);
        const std::uint64_t by_table = compute(code, data, 5, {});
        for (const CrcInstructions& allowed : every_choice()) {
          if (compute(code, data, 5, allowed) != by_table) {
            FAIL("differs at " << begin << " for " << size << " bytes");
          }
        }
      }
    }
  }
}

TEST_CASE("pieces can be computed one after the other, or combined into the whole") {
  const std::string text = random_text(1000);
  for (const Crc code : kAll) {
    const std::uint64_t whole = compute(code, bytes_of(text));
    for (std::size_t cut = 0; cut <= text.size(); cut += 37) {
      const auto head = bytes_of(text).first(cut);
      const auto tail = bytes_of(text).subspan(cut);
      const std::uint64_t first = compute(code, head);
      CHECK(compute(code, tail, first) == whole);
      CHECK(combine(code, first, compute(code, tail), tail.size()) == whole);
    }
  }
}

TEST_CASE("values can be combined over more bytes than the memory has") {
  // x^(8n) by squaring gives the same result as n steps of one zero byte each.
  for (const Crc code : kAll) {
    const std::uint64_t value = compute(code, bytes_of("weights"));
    const std::uint64_t terabyte = std::uint64_t{1} << 40;
    const std::uint64_t half = combine(code, value, 0, terabyte / 2);
    CHECK(combine(code, half, 0, terabyte / 2) == combine(code, value, 0, terabyte));
  }
}

TEST_CASE("codes have the names that storages use") {
  CHECK(crc_of_name("crc32c") == Crc::kCrc32c);
  CHECK(crc_of_name("crc64nvme") == Crc::kCrc64Nvme);
  CHECK_FALSE(crc_of_name("sha256"));
}

}  // namespace
}  // namespace streamer
