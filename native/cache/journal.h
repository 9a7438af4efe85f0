// Encodes the journal of a cached object as bytes: which ranges of the object are in the cache,
// with their checksums, and which of them turned out to be damaged.
//
// Guarantees: a record is read as it was written, or not at all. A torn record, left by a killed
// process or a full disk, hides none of the records behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace streamer {

// A range of bytes of an object, and their CRC32C.
struct CachedPiece {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t crc = 0;

  std::uint64_t end() const { return begin + bytes; }
  bool operator==(const CachedPiece&) const = default;
};

struct JournalRecord {
  enum class Kind : std::uint32_t {
    kHeld = 1,
    kForgotten = 2
  };  // whether the range is in the cache, or no longer

  Kind kind = Kind::kHeld;
  CachedPiece piece;

  bool operator==(const JournalRecord&) const = default;
};

inline constexpr std::size_t kJournalRecordBytes = 36;
using JournalBytes = std::array<std::byte, kJournalRecordBytes>;

JournalBytes encode(const JournalRecord& record);
// Returns the complete records, in order. Skips bytes that are not part of a record.
std::vector<JournalRecord> decode_journal(std::span<const std::byte> journal);

}  // namespace streamer
