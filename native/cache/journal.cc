#include "cache/journal.h"

#include <cstring>
#include <optional>

#include "integrity/crc.h"

namespace streamer {
namespace {

// "stc1": identifies this layout.
constexpr std::uint32_t kMagic = 0x31637473;

// The layout of a record in the file, in the byte order of this machine: a cache is never moved to
// another machine. The last field is the CRC32C of the fields before it.
struct Layout {
  std::uint32_t magic;
  std::uint32_t kind;
  std::uint32_t begin[2];
  std::uint32_t bytes[2];
  std::uint32_t crc;
  std::uint32_t spare;
  std::uint32_t checksum;
};
static_assert(sizeof(Layout) == kJournalRecordBytes);

std::uint32_t checksum_of(std::span<const std::byte> record) {
  return static_cast<std::uint32_t>(
      compute(Crc::kCrc32c, record.first(kJournalRecordBytes - sizeof(std::uint32_t))));
}

std::optional<JournalRecord> record_at(std::span<const std::byte> record) {
  Layout layout;
  std::memcpy(&layout, record.data(), sizeof(layout));
  if (layout.magic != kMagic || layout.checksum != checksum_of(record)) return std::nullopt;
  JournalRecord result;
  result.kind = static_cast<JournalRecord::Kind>(layout.kind);
  std::memcpy(&result.piece.begin, layout.begin, sizeof(layout.begin));
  std::memcpy(&result.piece.bytes, layout.bytes, sizeof(layout.bytes));
  result.piece.crc = layout.crc;
  return result;
}

}  // namespace

JournalBytes encode(const JournalRecord& record) {
  Layout layout{};
  layout.magic = kMagic;
  layout.kind = static_cast<std::uint32_t>(record.kind);
  std::memcpy(layout.begin, &record.piece.begin, sizeof(layout.begin));
  std::memcpy(layout.bytes, &record.piece.bytes, sizeof(layout.bytes));
  layout.crc = static_cast<std::uint32_t>(record.piece.crc);
  JournalBytes bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  layout.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

std::vector<JournalRecord> decode_journal(std::span<const std::byte> journal) {
  std::vector<JournalRecord> records;
  while (journal.size() >= kJournalRecordBytes) {
    const auto record = record_at(journal);
    if (record) records.push_back(*record);
    // After a torn record, the next record may begin at any byte.
    journal = journal.subspan(record ? kJournalRecordBytes : 1);
  }
  return records;
}

}  // namespace streamer
