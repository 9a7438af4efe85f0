#include "integrity/crc_instructions.h"

#include <array>
#include <cstring>

// Clang before 16 hides instructions that the compiler flags of the whole file do not allow.
#if defined(__aarch64__) && (!defined(__clang__) || __clang_major__ >= 16)
#define STREAMER_ARM
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define MULTIPLIES __attribute__((target("pclmul,sse2")))
#elif defined(STREAMER_ARM)
#include <arm_acle.h>
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
// The instruction PMULL belongs to the extension "aes". GCC before 13 only offers it as a part of
// "crypto".
#if defined(__clang__)
#define MULTIPLIES __attribute__((target("+aes")))
#else
#define MULTIPLIES __attribute__((target("+crypto")))
#endif
#define COMPUTES_CRC __attribute__((target("+crc")))
#endif

namespace streamer {
namespace {

#if defined(__x86_64__)

using Lane = __m128i;

MULTIPLIES Lane lane_of(std::uint64_t low, std::uint64_t high) {
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}

MULTIPLIES Lane loaded(const std::byte* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

MULTIPLIES void store(Lane lane, std::byte* data) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(data), lane);
}

MULTIPLIES Lane sum(Lane a, Lane b) { return _mm_xor_si128(a, b); }
MULTIPLIES Lane product_of_lows(Lane a, Lane b) { return _mm_clmulepi64_si128(a, b, 0x00); }
MULTIPLIES Lane product_of_highs(Lane a, Lane b) { return _mm_clmulepi64_si128(a, b, 0x11); }

#elif defined(STREAMER_ARM)

using Lane = uint64x2_t;

MULTIPLIES Lane lane_of(std::uint64_t low, std::uint64_t high) {
  return vcombine_u64(vcreate_u64(low), vcreate_u64(high));
}

MULTIPLIES Lane loaded(const std::byte* data) {
  return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(data)));
}

MULTIPLIES void store(Lane lane, std::byte* data) {
  vst1q_u8(reinterpret_cast<std::uint8_t*>(data), vreinterpretq_u8_u64(lane));
}

MULTIPLIES Lane sum(Lane a, Lane b) { return veorq_u64(a, b); }

MULTIPLIES Lane product_of_lows(Lane a, Lane b) {
  return vreinterpretq_u64_p128(vmull_p64(vgetq_lane_u64(a, 0), vgetq_lane_u64(b, 0)));
}

MULTIPLIES Lane product_of_highs(Lane a, Lane b) {
  return vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(a), vreinterpretq_p64_u64(b)));
}

bool has_capability(unsigned long capability) { return (getauxval(AT_HWCAP) & capability) != 0; }

#endif

CrcInstructions detect_instructions() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return {__builtin_cpu_supports("pclmul") > 0, false};
#elif defined(STREAMER_ARM)
  return {has_capability(HWCAP_PMULL), has_capability(HWCAP_CRC32)};
#else
  return {};
#endif
}

const CrcInstructions detected = detect_instructions();

#if defined(STREAMER_ARM)

COMPUTES_CRC std::uint64_t by_crc32(Crc code, std::uint64_t state,
                                    std::span<const std::byte> data) {
  const bool is_castagnoli = code == Crc::kCrc32c;
  auto value = static_cast<std::uint32_t>(state);
  for (; data.size() >= 8; data = data.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data(), sizeof(word));
    value = is_castagnoli ? __crc32cd(value, word) : __crc32d(value, word);
  }
  for (const std::byte byte : data) {
    const auto unit = static_cast<std::uint8_t>(byte);
    value = is_castagnoli ? __crc32cb(value, unit) : __crc32b(value, unit);
  }
  return value;
}

#endif

std::uint64_t without_products(Crc code, const CrcCode& constants, std::uint64_t state,
                               std::span<const std::byte> data, const CrcInstructions& allowed) {
#if defined(STREAMER_ARM)
  if (allowed.computes_crc32 && code != Crc::kCrc64Nvme) return by_crc32(code, state, data);
#endif
  (void)code, (void)allowed;
  return constants.by_table(state, data);
}

#if defined(MULTIPLIES)

constexpr std::size_t kLaneBytes = 16;
constexpr std::size_t kStepBytes = 4 * kLaneBytes;

// The start and the rest of data: `head` has the same remainder as all bytes before `rest`.
struct Folded {
  std::array<std::byte, kLaneBytes> head;
  std::span<const std::byte> rest;
};

MULTIPLIES Lane folded(Lane lane, Lane constants, Lane next) {
  return sum(sum(product_of_lows(lane, constants), product_of_highs(lane, constants)), next);
}

MULTIPLIES Lane lane_of(const FoldConstants& constants) {
  return lane_of(constants.high, constants.low);
}

// Folds four lanes of 16 bytes over the next 64 bytes repeatedly, because the multiplier computes
// several products at a time. Then folds the four lanes into one lane of 16 bytes, which has the
// same remainder as all bytes before the rest.
MULTIPLIES Folded fold(const CrcCode& constants, std::uint64_t state,
                       std::span<const std::byte> data) {
  Lane lanes[4];  // std::array would lose the alignment
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = loaded(data.data() + i * kLaneBytes);
  lanes[0] = sum(lanes[0], lane_of(state, 0));
  data = data.subspan(kStepBytes);
  const Lane over_64 = lane_of(constants.over_64());
  for (; data.size() >= kStepBytes; data = data.subspan(kStepBytes)) {
    for (std::size_t i = 0; i < 4; ++i) {
      lanes[i] = folded(lanes[i], over_64, loaded(data.data() + i * kLaneBytes));
    }
  }
  const Lane over_16 = lane_of(constants.over_16());
  for (std::size_t i = 1; i < 4; ++i) lanes[i] = folded(lanes[i - 1], over_16, lanes[i]);
  Folded result{{}, data};
  store(lanes[3], result.head.data());
  return result;
}

#endif

}  // namespace

const CrcInstructions& crc_instructions() { return detected; }

std::uint64_t remainder_after(Crc code, const CrcCode& constants, std::uint64_t state,
                              std::span<const std::byte> data, const CrcInstructions& allowed) {
#if defined(MULTIPLIES)
  if (allowed.multiplies_polynomials && data.size() >= kStepBytes) {
    const Folded folded = fold(constants, state, data);
    state = without_products(code, constants, 0, folded.head, allowed);
    data = folded.rest;
  }
#endif
  return without_products(code, constants, state, data, allowed);
}

}  // namespace streamer
