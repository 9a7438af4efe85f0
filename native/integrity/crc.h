// Cyclic redundancy checks, which storages keep for objects and manifests keep for tensors.
//
// Guarantees: results equal the published check values; pieces may be computed in any order, by any
// thread, and combined. The checks detect accidents (a flipped bit, a lost or swapped block), not
// attackers. Nothing is refused: every sequence of bytes has a value, and the empty one has 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace streamer {

// All three codes are reflected, start with all bits set, and end with a complement, so the same
// functions compute them.
enum class Crc : std::uint8_t {
  kCrc32,      // ISO-HDLC, as in zip and gzip: x-amz-checksum-crc32
  kCrc32c,     // Castagnoli, RFC 3720 §B.4: x-amz-checksum-crc32c, GCS, manifests
  kCrc64Nvme,  // NVM Express base specification: x-amz-checksum-crc64nvme
};

// Returns the code with a name that storages use: "crc32", "crc32c", "crc64nvme".
std::optional<Crc> crc_of_name(std::string_view name);
const char* name_of(Crc code);

std::size_t bytes_of(Crc code);
// Returns a value in the form for messages: all its hexadecimal digits, the most significant first.
std::string hexadecimal(Crc code, std::uint64_t value);

// The instructions that a processor has for these codes. If it has none of them, tables are used.
struct CrcInstructions {
  bool multiplies_polynomials = false;
  bool computes_crc32 = false;  // and also CRC32C
};

// The instructions of this processor, detected when the library is loaded.
const CrcInstructions& crc_instructions();

// Returns the value of `data`. If `before` is the value of earlier bytes, returns the value of
// those bytes followed by `data`. Uses only the instructions in `allowed`, which this processor
// must have.
std::uint64_t compute(Crc code, std::span<const std::byte> data, std::uint64_t before = 0,
                      const CrcInstructions& allowed = crc_instructions());

// Returns the value of two sequences of bytes, one after the other, from the value of each.
std::uint64_t combine(Crc code, std::uint64_t first, std::uint64_t second,
                      std::uint64_t second_bytes);

}  // namespace streamer
