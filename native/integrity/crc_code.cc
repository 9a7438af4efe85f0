#include "integrity/crc_code.h"

#include <bit>
#include <cstring>

namespace streamer {
namespace {

static_assert(std::endian::native == std::endian::little, "the tables take eight bytes as a word");

}  // namespace

CrcCode::CrcCode(std::uint64_t reflected_polynomial, unsigned width)
    : polynomial_(reflected_polynomial), width_(width) {
  squares_[0] = std::uint64_t{1} << (width_ - 2);  // x
  for (std::size_t k = 1; k < squares_.size(); ++k) {
    squares_[k] = multiply(squares_[k - 1], squares_[k - 1]);
  }
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? polynomial_ : 0);
    tables_[0][byte] = state;
  }
  for (std::size_t table = 1; table < tables_.size(); ++table) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t state = tables_[table - 1][byte];
      tables_[table][byte] = (state >> 8) ^ tables_[0][state & 0xff];
    }
  }
  over_64_ = fold_constants(64 * 8);
  over_16_ = fold_constants(16 * 8);
}

std::uint64_t CrcCode::multiply(std::uint64_t a, std::uint64_t b) const {
  std::uint64_t product = 0;
  for (std::uint64_t bit = std::uint64_t{1} << (width_ - 1); bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? polynomial_ : 0);  // times x
  }
  return product;
}

std::uint64_t CrcCode::power_of_x(std::uint64_t exponent) const {
  std::uint64_t power = std::uint64_t{1} << (width_ - 1);  // x^0
  for (std::size_t k = 0; exponent != 0; ++k, exponent >>= 1) {
    if ((exponent & 1) != 0) power = multiply(power, squares_[k]);
  }
  return power;
}

std::uint64_t CrcCode::by_table(std::uint64_t state, std::span<const std::byte> data) const {
  while (data.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data(), 8);
    word ^= state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= tables_[7 - i][(word >> (8 * i)) & 0xff];
    data = data.subspan(8);
  }
  for (const std::byte byte : data) {
    state = (state >> 8) ^ tables_[0][(state ^ static_cast<std::uint64_t>(byte)) & 0xff];
  }
  return state;
}

// The product of two reflected 64-bit words lies one bit too low in 128 bits, as if it were
// multiplied by x. So each power is smaller by one. The low half of a register holds the high
// powers.
FoldConstants CrcCode::fold_constants(std::uint64_t distance_bits) const {
  const unsigned shift = 64 - width_;  // a remainder holds the lowest powers of a word
  return {power_of_x(distance_bits + 63) << shift, power_of_x(distance_bits - 1) << shift};
}

}  // namespace streamer
