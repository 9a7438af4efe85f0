// The part of the arena that requests memory from the system before a tensor needs it.
//
// The scheduler holds a lock while a tensor gets its memory. mmap() waits for other threads that
// change the address space or return pages. This takes milliseconds if a consumer drops large
// tensors. So a reader prepares the memory first, without the lock.
#include <sys/mman.h>

#include "io/arena.h"

namespace streamer {

void Arena::prepare(std::size_t size, std::uint64_t file_offset) {
  if (size >= kOwnMappingBytes) {
    prepare_mapping(mapping_bytes_of(size, file_offset));
  } else if (size > 0) {
    prepare_chunk(size, file_offset);
  }
}

bool Arena::is_prepared(std::size_t size, std::uint64_t file_offset) {
  if (size == 0) return true;
  const std::lock_guard lock(mutex_);
  if (size < kOwnMappingBytes) return has_room_in_current(size, file_offset);
  return best_kept(mapping_bytes_of(size, file_offset)) != cached_.end();
}

bool Arena::has_room_in_current(std::size_t size, std::uint64_t file_offset) {
  const ArenaChunk* const current = current_for(size);
  return current != nullptr && current->has_room(size, file_offset);
}

// Inserts the mapping at the end of the list that is evicted last.
void Arena::prepare_mapping(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (best_kept(bytes) != cached_.end()) return;
  }
  std::byte* const base = map_huge(bytes);
  if (base == nullptr) return;
  std::unique_lock lock(mutex_);
  if (budget_bytes_ > 0) {
    cached_.insert(cached_.begin(), {base, bytes, false});
    mapped_bytes_ += bytes;
    return;
  }
  lock.unlock();  // the last session has just ended
  munmap(base, bytes);
}

void Arena::trim() {
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    if (is_over_limit()) make_room(0, evicted);
  }
  give_back(evicted);
}

void Arena::prepare_chunk(std::size_t size, std::uint64_t file_offset) {
  std::size_t missing_bytes = 0;  // size of the chunk to map
  {
    const std::lock_guard lock(mutex_);
    if (has_room_in_current(size, file_offset) || budget_bytes_ == 0) return;
    if (spare_.empty()) missing_bytes = chunk_bytes_for(size);
  }
  std::byte* const base = missing_bytes > 0 ? map_chunk(missing_bytes, size) : nullptr;
  if (missing_bytes > 0 && base == nullptr) return;
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    if (base != nullptr) {
      chunks_.push_back(std::make_unique<ArenaChunk>(base, missing_bytes));
      spare_.insert(spare_.begin(), chunks_.back().get());
    }
    if (!has_room_in_current(size, file_offset)) add_chunk(size, evicted);
  }
  give_back(evicted);
}

}  // namespace streamer
