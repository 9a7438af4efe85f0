// Computes the remainder of a cyclic code with special instructions of the processor. x86 and ARM
// multiply polynomials (PCLMULQDQ and PMULL), and ARM has instructions for two of the codes
// (CRC32). Old processors, and those of other kinds, use tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "integrity/crc.h"
#include "integrity/crc_code.h"

namespace streamer {

// Returns the remainder after `data`, as CrcCode::by_table() does; `state` is the remainder before
// `data`. Uses only the instructions in `allowed`, which this processor must have. `constants` must
// belong to `code`.
std::uint64_t remainder_after(Crc code, const CrcCode& constants, std::uint64_t state,
                              std::span<const std::byte> data, const CrcInstructions& allowed);

}  // namespace streamer
