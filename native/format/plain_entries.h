// Reads the entries of a safetensors header in their plain form, one after the other.
//
// Nearly all entries have this form, with or without one space after each colon and comma:
//
//   "name":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]}
//
// A name is plain if it has no escape and is not __metadata__; a number, if it has at most 19
// digits and therefore fits in 64 bits. An accepted entry is JSON, with the same meaning in every
// reader. Entries in any other form are left to the caller, right or wrong.
//
// `Char` is char for Latin-1, char16_t or char32_t: the characters of Python's strings. No I/O, no
// state besides the position.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace streamer {

template <typename Char>
struct PlainEntry {
  std::basic_string_view<Char> name;
  std::basic_string_view<Char> dtype;
  std::basic_string_view<Char> shape;  // the text between its brackets
  std::uint64_t begin = 0;             // in the data section
  std::uint64_t end = 0;
};

template <typename Char>
class PlainEntries {
 public:
  using Text = std::basic_string_view<Char>;

  // `position`: of the first entry's quote.
  PlainEntries(Text text, std::size_t position) : text_(text), position_(position), at_(position) {}

  // Returns the next entry; nothing if there is another form, or the end, at position().
  std::optional<PlainEntry<Char>> next() {
    PlainEntry<Char> entry;
    at_ = position_;
    const bool is_plain =
        take_name(entry.name) && take(":") && take_space() && take("{\"dtype\":") && take_space() &&
        take("\"") && take_dtype(entry.dtype) && take("\",") && take_space() &&
        take("\"shape\":") && take_space() && take("[") && take_shape(entry.shape) && take("],") &&
        take_space() && take("\"data_offsets\":") && take_space() && take("[") &&
        take_number(entry.begin) && take(",") && take_space() && take_number(entry.end) &&
        take("]}") && take_separator();
    if (!is_plain) return std::nullopt;
    position_ = at_;
    return entry;
  }

  // Position of the next member's quote, or of the brace that closes the object.
  std::size_t position() const { return position_; }

  // Returns the dimensions of a shape that next() returned.
  static std::vector<std::uint64_t> dimensions(Text shape) {
    std::vector<std::uint64_t> found;
    PlainEntries reader(shape, 0);
    while (reader.at_ < shape.size()) {
      reader.take_number(found.emplace_back());
      if (reader.take(",")) reader.take_space();
    }
    return found;
  }

 private:
  static constexpr std::size_t kMostDigits = 19;  // 20 digits may exceed 64 bits

  char32_t code(std::size_t at) const {
    if constexpr (sizeof(Char) == 1) return static_cast<unsigned char>(text_[at]);
    return text_[at];
  }
  bool is_at(char expected) const {
    return at_ < text_.size() && code(at_) == static_cast<char32_t>(expected);
  }
  bool is_digit() const { return at_ < text_.size() && code(at_) >= U'0' && code(at_) <= U'9'; }

  bool take(std::string_view expected) {
    if (text_.size() - at_ < expected.size()) return false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (code(at_ + i) != static_cast<char32_t>(expected[i])) return false;
    }
    at_ += expected.size();
    return true;
  }
  bool take_space() {
    if (is_at(' ')) ++at_;
    return true;
  }

  bool take_name(Text& name) {
    if (!take("\"")) return false;
    const std::size_t begin = at_;
    while (at_ < text_.size() && code(at_) != U'"' && code(at_) != U'\\' && code(at_) >= U' ')
      ++at_;
    name = text_.substr(begin, at_ - begin);
    return take("\"") && !is_metadata(name);
  }
  static bool is_metadata(Text name) {
    constexpr std::string_view kMetadata = "__metadata__";
    return std::equal(name.begin(), name.end(), kMetadata.begin(), kMetadata.end());
  }

  bool take_dtype(Text& dtype) {
    const std::size_t begin = at_;
    while (is_digit() || is_at('_') ||
           (at_ < text_.size() && code(at_) >= U'A' && code(at_) <= U'Z')) {
      ++at_;
    }
    dtype = text_.substr(begin, at_ - begin);
    return !dtype.empty();
  }

  bool take_shape(Text& shape) {
    const std::size_t begin = at_;
    std::uint64_t dimension = 0;
    if (is_digit()) {
      do {
        take_space();
        if (!take_number(dimension)) return false;
      } while (take(","));
    }
    shape = text_.substr(begin, at_ - begin);
    return true;
  }

  // Refuses leading zeros, as JSON does.
  bool take_number(std::uint64_t& number) {
    const std::size_t begin = at_;
    number = 0;
    while (is_digit() && at_ - begin < kMostDigits) number = number * 10 + (code(at_++) - U'0');
    const std::size_t digits = at_ - begin;
    return digits > 0 && !is_digit() && (digits == 1 || code(begin) != U'0');
  }

  bool take_spaces() {
    while (is_at(' ') || is_at('\t') || is_at('\n') || is_at('\r')) ++at_;
    return true;
  }
  // The comma before the next member's quote, or nothing before the closing brace.
  bool take_separator() {
    take_spaces();
    if (is_at('}')) return true;
    return take(",") && take_spaces() && is_at('"');
  }

  const Text text_;
  std::size_t position_;
  std::size_t at_;
};

// Returns the bytes of a tensor. Returns nothing if a product from left to right exceeds 64 bits,
// as in the reference implementation, or if the tensor ends inside of a byte.
inline std::optional<std::uint64_t> bytes_of(const std::vector<std::uint64_t>& shape,
                                             std::uint64_t bits_of_element) {
  std::uint64_t bits = 1;
  for (const std::uint64_t dimension : shape) {
    if (__builtin_mul_overflow(bits, dimension, &bits)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bits, bits_of_element, &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace streamer
