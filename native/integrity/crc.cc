#include "integrity/crc.h"

#include <array>
#include <cstdio>

#include "integrity/crc_code.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace streamer {
namespace {

// Made when the library is loaded, which takes microseconds, and not on first use: a child must not
// inherit them half made by a thread that it does not have.
const std::array<CrcCode, 3> kCodes = {CrcCode(0xEDB88320, 32), CrcCode(0x82F63B78, 32),
                                       CrcCode(0x9A6C9329AC4BC9B5, 64)};

const CrcCode& code_of(Crc code) { return kCodes[static_cast<std::size_t>(code)]; }

#if defined(__x86_64__)

constexpr std::size_t kLaneBytes = 16;
constexpr std::size_t kStepBytes = 4 * kLaneBytes;

bool has_carryless_multiplication() { return __builtin_cpu_supports("pclmul") > 0; }

__attribute__((target("pclmul,sse2"))) __m128i folded(__m128i lane, __m128i constants,
                                                      __m128i next) {
  const __m128i high = _mm_clmulepi64_si128(lane, constants, 0x00);
  const __m128i low = _mm_clmulepi64_si128(lane, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(high, low), next);
}

__attribute__((target("pclmul,sse2"))) __m128i loaded(const std::byte* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

__attribute__((target("pclmul,sse2"))) __m128i constants_of(const FoldConstants& constants) {
  return _mm_set_epi64x(static_cast<long long>(constants.low),
                        static_cast<long long>(constants.high));
}

// Four lanes of 16 bytes are folded over the 64 in front of them, as the multiplier takes several
// products at a time; then the lanes into one, whose 16 bytes have the remainder of all before.
__attribute__((target("pclmul,sse2"))) std::uint64_t by_folding(const CrcCode& code,
                                                                std::uint64_t state,
                                                                std::span<const std::byte> data) {
  __m128i lanes[4];  // std::array would lose the alignment
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = loaded(data.data() + i * kLaneBytes);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_set_epi64x(0, static_cast<long long>(state)));
  data = data.subspan(kStepBytes);
  const __m128i over_64 = constants_of(code.over_64());
  for (; data.size() >= kStepBytes; data = data.subspan(kStepBytes)) {
    for (std::size_t i = 0; i < 4; ++i) {
      lanes[i] = folded(lanes[i], over_64, loaded(data.data() + i * kLaneBytes));
    }
  }
  const __m128i over_16 = constants_of(code.over_16());
  for (std::size_t i = 1; i < 4; ++i) lanes[i] = folded(lanes[i - 1], over_16, lanes[i]);
  std::array<std::byte, kLaneBytes> last{};
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last.data()), lanes[3]);
  return code.by_table(code.by_table(0, last), data);
}

#endif

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

std::uint64_t compute(Crc code, std::span<const std::byte> data, std::uint64_t before) {
#if defined(__x86_64__)
  if (data.size() >= kStepBytes && has_carryless_multiplication()) {
    const CrcCode& crc_code = code_of(code);
    return by_folding(crc_code, before ^ crc_code.ones(), data) ^ crc_code.ones();
  }
#endif
  return compute_by_table(code, data, before);
}

std::uint64_t compute_by_table(Crc code, std::span<const std::byte> data, std::uint64_t before) {
  const CrcCode& crc_code = code_of(code);
  return crc_code.by_table(before ^ crc_code.ones(), data) ^ crc_code.ones();
}

std::uint64_t combine(Crc code, std::uint64_t first, std::uint64_t second,
                      std::uint64_t second_bytes) {
  const CrcCode& crc_code = code_of(code);
  return crc_code.multiply(crc_code.power_of_x(8 * second_bytes), first) ^ second;
}

}  // namespace streamer
