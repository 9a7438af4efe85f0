// The arithmetic of one cyclic code modulo its polynomial, and the constants that follow from it.
//
// Polynomials are reflected, as everywhere in this folder: the lowest bit of the first byte is the
// highest power of x. A remainder of `width` bits lies in the low bits of a 64-bit word, the
// coefficient of x^(width-1) in bit 0.
//
// The tables take eight bytes at a time: Kounavis and Berry, "Novel table lookup-based algorithms
// for high-performance CRC generation", 2008. The folding uses carry-less multiplication: Gopal et
// al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel, 2009.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace streamer {

// Factors that move 128 bits forward over a distance: `high` for the high powers of x, `low` for
// the low ones.
struct FoldConstants {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

class CrcCode {
 public:
  CrcCode(std::uint64_t reflected_polynomial, unsigned width);

  // Returns a * b modulo the polynomial.
  std::uint64_t multiply(std::uint64_t a, std::uint64_t b) const;
  // Returns x^exponent modulo the polynomial.
  std::uint64_t power_of_x(std::uint64_t exponent) const;
  // Returns a value with all bits set.
  std::uint64_t ones() const {
    return width_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width_) - 1;
  }

  // Returns the remainder after `data`, computed with tables; `state` is the remainder before
  // `data`.
  std::uint64_t by_table(std::uint64_t state, std::span<const std::byte> data) const;

  // The factors for a distance of 64 bytes, and of 16 bytes.
  const FoldConstants& over_64() const { return over_64_; }
  const FoldConstants& over_16() const { return over_16_; }

 private:
  FoldConstants fold_constants(std::uint64_t distance_bits) const;

  std::uint64_t polynomial_;
  unsigned width_;
  std::array<std::uint64_t, 64> squares_{};  // x^(2^k)
  std::array<std::array<std::uint64_t, 256>, 8> tables_{};
  FoldConstants over_64_;
  FoldConstants over_16_;
};

}  // namespace streamer
