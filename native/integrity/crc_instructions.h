// The remainder of a cyclic code with what the processor has for it: x86 multiplies polynomials
// (PCLMULQDQ), and so does ARM (PMULL), which also has instructions for two of the codes (CRC32).
// An old processor, and any other kind, computes by tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "integrity/crc.h"
#include "integrity/crc_code.h"

namespace streamer {

// The remainder after `data`, `state` being the one before it, as CrcCode::by_table() gives it.
// Uses no instruction but `allowed`, which this processor must have. `constants` are those of
// `code`.
std::uint64_t remainder_after(Crc code, const CrcCode& constants, std::uint64_t state,
                              std::span<const std::byte> data, const CrcInstructions& allowed);

}  // namespace streamer
