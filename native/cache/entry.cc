#include "cache/entry.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "integrity/crc.h"

namespace streamer {
namespace {

constexpr mode_t kPrivate = 0600;

[[noreturn]] void refuse(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int open_in(const std::string& folder, const char* name, int flags) {
  return open((folder + "/" + name).c_str(), flags | O_CLOEXEC | O_NOFOLLOW, kPrivate);
}

bool read_all(int descriptor, std::span<std::byte> bytes, std::uint64_t begin) {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    begin += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool write_all(int descriptor, std::span<const std::byte> bytes, std::uint64_t begin) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    begin += static_cast<std::uint64_t>(put);
  }
  return true;
}

std::uint64_t size_of(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

// Returns the bytes of a piece in the file; null if the bytes are damaged.
std::unique_ptr<std::byte[]> sound_bytes(int descriptor, const CachedPiece& piece) {
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(piece.bytes);
  const std::span whole(bytes.get(), piece.bytes);
  const bool is_sound =
      read_all(descriptor, whole, piece.begin) && compute(Crc::kCrc32c, whole) == piece.crc;
  return is_sound ? std::move(bytes) : nullptr;
}

}  // namespace

CacheEntry::CacheEntry(const std::string& folder, std::uint64_t object_bytes)
    : object_bytes_(object_bytes), index_(object_bytes) {
  data_ = open_in(folder, "data", O_RDWR | O_CREAT);
  journal_ = open_in(folder, "journal", O_RDWR | O_CREAT | O_APPEND);
  if (data_ < 0 || journal_ < 0) {
    is_writable_ = false;
    for (const int descriptor : {data_, journal_}) {
      if (descriptor >= 0) close(descriptor);
    }
    data_ = open_in(folder, "data", O_RDONLY);
    if (data_ < 0) refuse("the cached data");
    journal_ = open_in(folder, "journal", O_RDONLY);
    if (journal_ < 0) {
      const int journal_error = errno;
      close(data_);
      errno = journal_error;
      refuse("the journal of a cached object");
    }
  }
  refresh();  // first: a writer records a piece only after it has given the file its size
  const std::uint64_t size = size_of(data_);
  if (size < object_bytes) forget_cut_off(size);
  // The file is sparse: a reader of a hole gets a wrong checksum.
  const bool is_sized = size == object_bytes ||
                        (is_writable_ && ftruncate(data_, static_cast<off_t>(object_bytes)) == 0);
  if (!is_sized) failure_ = errno == 0 ? EIO : errno;
}

CacheEntry::~CacheEntry() {
  close(data_);
  close(journal_);
}

void CacheEntry::refresh() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t size = size_of(journal_);
  if (size <= journal_bytes_) return;
  // Also read the start of a record that another process had not finished at the last refresh.
  const std::uint64_t from =
      journal_bytes_ - std::min<std::uint64_t>(journal_bytes_, kJournalRecordBytes - 1);
  std::vector<std::byte> bytes(size - from);
  if (!read_all(journal_, bytes, from)) return;
  for (const JournalRecord& record : decode_journal(bytes)) index_.add(record);
  journal_bytes_ = size;
}

// Forgets the pieces that reach beyond `size`, to which the file was cut.
void CacheEntry::forget_cut_off(std::uint64_t size) {
  const std::vector<CachedPiece> pieces = index_.pieces();
  const bool is_any_cut =
      std::any_of(pieces.begin(), pieces.end(),
                  [size](const CachedPiece& piece) { return piece.end() > size; });
  if (is_any_cut) forget(size, object_bytes_);
}

std::optional<std::uint64_t> CacheEntry::checksum(std::uint64_t begin, std::uint64_t end) {
  std::vector<CachedPiece> pieces;
  {
    const std::lock_guard lock(mutex_);
    if (const auto crc = index_.checksum(begin, end)) return crc;
    pieces = index_.around(begin, end);
  }
  if (pieces.empty()) return std::nullopt;
  std::uint64_t whole = 0;
  for (const CachedPiece& piece : pieces) {
    const std::uint64_t from = std::max(begin, piece.begin), to = std::min(end, piece.end());
    const auto crc = checksum_within(piece, from, to);
    if (!crc) return std::nullopt;
    whole = combine(Crc::kCrc32c, whole, *crc, to - from);
  }
  return whole;
}

std::optional<std::uint64_t> CacheEntry::checksum_within(const CachedPiece& piece,
                                                         std::uint64_t begin, std::uint64_t end) {
  if (begin == piece.begin && end == piece.end()) return piece.crc;
  try {
    const auto bytes = sound_bytes(data_, piece);
    if (!bytes) return std::nullopt;
    return compute(Crc::kCrc32c, {bytes.get() + (begin - piece.begin), end - begin});
  } catch (const std::bad_alloc&) {  // without memory for the check, the range counts as not cached
    return std::nullopt;
  }
}

std::uint64_t CacheEntry::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return index_.held_bytes();
}

std::uint64_t CacheEntry::check() {
  std::vector<CachedPiece> pieces;
  {
    const std::lock_guard lock(mutex_);
    pieces = index_.pieces();
  }
  std::uint64_t damaged = 0;
  for (const CachedPiece& piece : pieces) {
    if (sound_bytes(data_, piece)) continue;
    damaged += piece.bytes;
    forget(piece.begin, piece.end());
  }
  return damaged;
}

void CacheEntry::write(std::uint64_t begin, std::span<const std::byte> bytes,
                       const std::vector<std::uint64_t>& piece_bytes, bool is_confirmed) {
  if (!is_writable()) return;
  std::vector<JournalRecord> records;
  std::uint64_t position = 0;
  for (const std::uint64_t size : piece_bytes) {
    const std::uint64_t crc = compute(Crc::kCrc32c, bytes.subspan(position, size));
    records.push_back({JournalRecord::Kind::kHeld, {begin + position, size, crc}});
    position += size;
  }
  if (is_confirmed && are_recorded(records)) return;
  if (!write_all(data_, bytes, begin)) {
    failure_ = errno;
  } else if (is_confirmed) {
    append(records);
  } else {
    const std::lock_guard lock(mutex_);
    for (const JournalRecord& record : records) {
      unconfirmed_.insert_or_assign(record.piece.begin, record);
    }
  }
}

void CacheEntry::confirm(std::uint64_t begin, std::uint64_t end, std::uint64_t crc) {
  const std::vector<JournalRecord> records = take_unconfirmed(begin, end);
  std::uint64_t position = begin, whole = 0;
  for (const auto& [_, piece] : records) {
    if (piece.begin != position) return;
    position = piece.end();
    whole = combine(Crc::kCrc32c, whole, piece.crc, piece.bytes);
  }
  if (position == end && whole == crc) append(records);
}

// Removes the unconfirmed pieces within a range, and returns them.
std::vector<JournalRecord> CacheEntry::take_unconfirmed(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  std::vector<JournalRecord> within;
  auto it = unconfirmed_.lower_bound(begin);
  while (it != unconfirmed_.end() && it->first < end) {
    if (it->second.piece.end() > end) {
      ++it;
      continue;
    }
    within.push_back(it->second);
    it = unconfirmed_.erase(it);
  }
  return within;
}

// Whether the cache already holds the bytes of all records, in these pieces or others.
bool CacheEntry::are_recorded(const std::vector<JournalRecord>& records) const {
  const std::lock_guard lock(mutex_);
  return std::all_of(records.begin(), records.end(), [this](const JournalRecord& record) {
    return index_.checksum(record.piece.begin, record.piece.end()) == record.piece.crc;
  });
}

void CacheEntry::forget(std::uint64_t begin, std::uint64_t end) {
  take_unconfirmed(begin, end);
  append({{JournalRecord::Kind::kForgotten, {begin, end - begin, 0}}});
}

// Appends all records with one call, so that records of two processes never mix.
void CacheEntry::append(const std::vector<JournalRecord>& records) {
  std::vector<std::byte> bytes;
  for (const JournalRecord& record : records) {
    const JournalBytes encoded = encode(record);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  }
  const std::lock_guard lock(mutex_);
  for (const JournalRecord& record : records) index_.add(record);
  if (!is_writable()) return;
  const ssize_t put = ::write(journal_, bytes.data(), bytes.size());
  if (put != static_cast<ssize_t>(bytes.size())) {
    failure_ = put < 0 ? errno : ENOSPC;
    return;
  }
  for (const JournalRecord& record : records) {
    if (record.kind == JournalRecord::Kind::kHeld) written_bytes_ += record.piece.bytes;
  }
}

}  // namespace streamer
