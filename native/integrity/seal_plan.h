// The items of a plan that are encrypted, as values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "integrity/piece_cipher.h"

namespace streamer {

// One encrypted file: its cipher, and the tags of all its pieces, ordered by number.
struct SealedFile {
  std::shared_ptr<const PieceCipher> cipher;
  std::vector<std::byte> tags;
};

// The file of an item, and the number of the item's first piece in that file.
struct SealedItem {
  std::uint32_t file = kPlain;
  std::uint64_t first_piece = 0;

  static constexpr std::uint32_t kPlain = UINT32_MAX;
};

struct SealPlan {
  std::vector<SealedFile> files;
  std::vector<SealedItem> items;  // one for each item; empty if nothing is encrypted

  // Returns the largest piece size, which is a multiple of all others; 1 without an encrypted file.
  std::uint64_t piece_bytes() const {
    std::uint64_t largest = 1;
    for (const SealedFile& file : files) {
      if (file.cipher->piece_bytes() > largest) largest = file.cipher->piece_bytes();
    }
    return largest;
  }
};

}  // namespace streamer
