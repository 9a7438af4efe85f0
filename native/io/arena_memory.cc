#include "io/arena_memory.h"

#include <sys/mman.h>

#include <utility>

#include "io/arena.h"

namespace streamer {

Memory::~Memory() {
  if (arena_ != nullptr) arena_->release(*this);
}

void Memory::hand_over() {
  if (is_held_) arena_->subtract_held(size_);
  is_held_ = false;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(chunk_, other.chunk_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(is_held_, other.is_held_);
}

// Maps one alignment more than necessary, and unmaps the surplus at both ends.
std::byte* map_huge(std::size_t bytes) {
  const std::size_t alignment = mapping_alignment(bytes);
  const std::size_t reserved = bytes + alignment;
  void* raw = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t head = (alignment - address % alignment) % alignment;
  if (head > 0) munmap(start, head);
  if (alignment - head > 0) munmap(start + head + bytes, alignment - head);
  madvise(start + head, bytes, huge_page_advice());  // advice: a refusal only costs speed
  return start + head;
}

std::byte* map_chunk(std::size_t bytes, std::size_t size) {
  std::byte* const base = map_huge(bytes);
  // A caller that often reads one small tensor should not pay for zeroing 2 MiB each time.
  if (base != nullptr && size < kLargeStepBytes) madvise(base, kLargeStepBytes, MADV_NOHUGEPAGE);
  return base;
}

}  // namespace streamer
