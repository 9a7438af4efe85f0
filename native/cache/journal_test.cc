#include "cache/journal.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace streamer {
namespace {

using Bytes = std::vector<std::byte>;

void append(Bytes& journal, const JournalRecord& record) {
  const JournalBytes encoded = encode(record);
  journal.insert(journal.end(), encoded.begin(), encoded.end());
}

JournalRecord record_of(std::uint64_t number) {
  const auto kind = number % 5 == 4 ? JournalRecord::Kind::kForgotten : JournalRecord::Kind::kHeld;
  return {kind, {number << 33, number * 1001 + 1, number * 0x9e3779b1U % 0xffffffffU}};
}

TEST_CASE("records are read as they were written, in order") {
  Bytes journal;
  std::vector<JournalRecord> records;
  for (std::uint64_t i = 0; i < 100; ++i) records.push_back(record_of(i));
  for (const JournalRecord& record : records) append(journal, record);
  CHECK(decode_journal(journal) == records);
  CHECK(decode_journal({}).empty());
}

TEST_CASE("a record that was torn at any byte hides no other record") {
  for (std::size_t kept = 0; kept < kJournalRecordBytes; ++kept) {
    Bytes journal;
    append(journal, record_of(1));
    append(journal, record_of(2));
    journal.resize(kJournalRecordBytes + kept);
    append(journal, record_of(3));
    append(journal, record_of(4));
    CHECK(decode_journal(journal) == std::vector{record_of(1), record_of(3), record_of(4)});
  }
}

TEST_CASE("a damaged journal yields no record that was not written") {
  std::mt19937 random(38);
  std::vector<JournalRecord> written;
  for (std::uint64_t i = 0; i < 20; ++i) written.push_back(record_of(i));
  for (int round = 0; round < 3000; ++round) {
    Bytes journal;
    for (const JournalRecord& record : written) append(journal, record);
    const std::size_t changes = 1 + random() % 8;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = random() % journal.size();
      const std::size_t size = std::min<std::size_t>(random() % 50, journal.size() - at);
      switch (random() % 4) {
        case 0:
          journal[at] ^= std::byte{static_cast<unsigned char>(1U << random() % 8)};
          break;
        case 1:
          std::fill_n(journal.begin() + static_cast<long>(at), size, std::byte{0});
          break;
        case 2:
          journal.erase(journal.begin() + static_cast<long>(at),
                        journal.begin() + static_cast<long>(at + size));
          break;
        default:
          journal.insert(journal.begin() + static_cast<long>(at), size, std::byte{0x73});
      }
      if (journal.empty()) break;
    }
    for (const JournalRecord& record : decode_journal(journal)) {
      CHECK(std::find(written.begin(), written.end(), record) != written.end());
    }
  }
}

}  // namespace
}  // namespace streamer
