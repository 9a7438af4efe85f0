// Cyclic redundancy checks that stores keep of their objects, and that manifests keep of tensors.
//
// Guarantees: the published check values; pieces may be computed in any order, by any thread, and
// combined. They find accidents (a flipped bit, a lost or swapped block), not attackers.
// Refuses nothing: every run of bytes has a value, the empty one 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace streamer {

// All three are reflected, begin with all ones and end complemented, so that one code computes
// them.
enum class Crc : std::uint8_t {
  kCrc32,      // ISO-HDLC, as in zip and gzip: x-amz-checksum-crc32
  kCrc32c,     // Castagnoli, RFC 3720 §B.4: x-amz-checksum-crc32c, GCS, manifests
  kCrc64Nvme,  // NVM Express base specification: x-amz-checksum-crc64nvme
};

// By the names stores give them: "crc32", "crc32c", "crc64nvme".
std::optional<Crc> crc_of_name(std::string_view name);
const char* name_of(Crc code);

std::size_t bytes_of(Crc code);
// As messages show a value: all its hexadecimal digits, the most significant first.
std::string hexadecimal(Crc code, std::uint64_t value);

// What a processor has for these codes; with none of it they are computed by tables.
struct CrcInstructions {
  bool multiplies_polynomials = false;
  bool computes_crc32 = false;  // and CRC32C
};

// Those of this processor, which is asked when the library is loaded.
const CrcInstructions& crc_instructions();

// The value of `data`, or of what `before` is the value of with `data` behind it. Uses no
// instructions but those `allowed`, which this processor must have.
std::uint64_t compute(Crc code, std::span<const std::byte> data, std::uint64_t before = 0,
                      const CrcInstructions& allowed = crc_instructions());

// The value of two runs of bytes, one behind the other, from the values of each.
std::uint64_t combine(Crc code, std::uint64_t first, std::uint64_t second,
                      std::uint64_t second_bytes);

}  // namespace streamer
