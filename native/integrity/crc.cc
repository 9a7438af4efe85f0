#include "integrity/crc.h"

#include <array>
#include <cstdio>

#include "integrity/crc_code.h"
#include "integrity/crc_instructions.h"

namespace streamer {
namespace {

// Computed when the library is loaded, which takes microseconds. If it happened on first use, a
// forked child could inherit tables that another thread of the parent was still computing.
const std::array<CrcCode, 3> kCodes = {CrcCode(0xEDB88320, 32), CrcCode(0x82F63B78, 32),
                                       CrcCode(0x9A6C9329AC4BC9B5, 64)};

const CrcCode& code_of(Crc code) { return kCodes[static_cast<std::size_t>(code)]; }

}  // namespace

std::optional<Crc> crc_of_name(std::string_view name) {
  for (const Crc code : {Crc::kCrc32, Crc::kCrc32c, Crc::kCrc64Nvme}) {
    if (name == name_of(code)) return code;
  }
  return std::nullopt;
}

const char* name_of(Crc code) {
  constexpr std::array<const char*, 3> kNames = {"crc32", "crc32c", "crc64nvme"};
  return kNames[static_cast<std::size_t>(code)];
}

std::size_t bytes_of(Crc code) { return code == Crc::kCrc64Nvme ? 8 : 4; }

std::string hexadecimal(Crc code, std::uint64_t value) {
  std::array<char, 17> text{};
  const int digits = static_cast<int>(2 * bytes_of(code));
  std::snprintf(text.data(), text.size(), "%0*llx", digits, static_cast<unsigned long long>(value));
  return text.data();
}

std::uint64_t compute(Crc code, std::span<const std::byte> data, std::uint64_t before,
                      const CrcInstructions& allowed) {
  const CrcCode& crc_code = code_of(code);
  return remainder_after(code, crc_code, before ^ crc_code.ones(), data, allowed) ^ crc_code.ones();
}

std::uint64_t combine(Crc code, std::uint64_t first, std::uint64_t second,
                      std::uint64_t second_bytes) {
  const CrcCode& crc_code = code_of(code);
  return crc_code.multiply(crc_code.power_of_x(8 * second_bytes), first) ^ second;
}

}  // namespace streamer
