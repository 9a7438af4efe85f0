// One cached object: a sparse file of the object's size, and the journal that lists the ranges that
// are in the file.
//
// Contract
//  - A range is recorded after its bytes were written. A process that is killed at any point
//    leaves each range either recorded and right, or not recorded. Nothing is flushed to the disk:
//    each reader compares a range with its checksum, and so notices what a crash of the machine
//    lost.
//  - Any number of processes may write the same entry: all of them write the bytes of one version,
//    and each record is appended by one call.
//  - The first write that fails ends all writing. What is recorded stays readable.
//
// Thread-safe. Only the one thread of the cache calls write() (cache/writer.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/journal.h"
#include "cache/piece_index.h"

namespace streamer {

class CacheEntry {
 public:
  // Opens the files "data" and "journal" in the folder, and creates missing ones if the folder can
  // be written. Throws std::system_error.
  CacheEntry(const std::string& folder, std::uint64_t object_bytes);
  ~CacheEntry();
  CacheEntry(const CacheEntry&) = delete;
  CacheEntry& operator=(const CacheEntry&) = delete;

  // Adds the ranges that other processes recorded since the last call.
  void refresh();
  // Returns the CRC32C of a range of the object; nothing if the cache lacks bytes of the range. If
  // the first or last piece is only partly in the range, the whole piece is read and compared with
  // its checksum first.
  std::optional<std::uint64_t> checksum(std::uint64_t begin, std::uint64_t end);
  std::uint64_t held_bytes() const;
  // Reads every recorded piece, and forgets damaged ones. Returns the number of damaged bytes.
  std::uint64_t check();

  bool is_writable() const { return is_writable_ && failure_ == 0; }
  // The errno that ended all writing; 0 while writing goes on.
  int failure() const { return failure_; }
  std::uint64_t written_bytes() const { return written_bytes_; }
  std::uint64_t skipped_bytes() const { return skipped_bytes_; }
  void note_skipped(std::uint64_t bytes) { skipped_bytes_ += bytes; }

  // Writes consecutive bytes, and records them as pieces of the given sizes. Does nothing if all of
  // them are recorded already. Bytes that may be wrong are written with `is_confirmed` false, in
  // any case. No reader finds them until confirm() records them.
  void write(std::uint64_t begin, std::span<const std::byte> bytes,
             const std::vector<std::uint64_t>& piece_bytes, bool is_confirmed = true);
  // Records the unconfirmed pieces of a range, if together they are the whole range and have its
  // CRC32C. Else some are of another load with wrong bytes, or were skipped, and all are dropped.
  void confirm(std::uint64_t begin, std::uint64_t end, std::uint64_t crc);
  void forget(std::uint64_t begin, std::uint64_t end);

 private:
  void forget_cut_off(std::uint64_t size);
  bool are_recorded(const std::vector<JournalRecord>& records) const;
  std::vector<JournalRecord> take_unconfirmed(std::uint64_t begin, std::uint64_t end);
  void append(const std::vector<JournalRecord>& records);
  std::optional<std::uint64_t> checksum_within(const CachedPiece& piece, std::uint64_t begin,
                                               std::uint64_t end);

  const std::uint64_t object_bytes_;
  int data_ = -1;
  int journal_ = -1;
  bool is_writable_ = true;
  std::atomic<int> failure_ = 0;
  std::atomic<std::uint64_t> written_bytes_ = 0;
  std::atomic<std::uint64_t> skipped_bytes_ = 0;
  mutable std::mutex mutex_;  // guards everything below
  PieceIndex index_;
  std::map<std::uint64_t, JournalRecord> unconfirmed_;  // by their begin
  std::uint64_t journal_bytes_ = 0;  // bytes of the journal that are in the index
};

}  // namespace streamer
