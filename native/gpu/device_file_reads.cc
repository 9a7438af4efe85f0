#include "gpu/device_file_reads.h"

#include <algorithm>
#include <cerrno>

namespace streamer {
namespace {

// The library's default size of one read (max_direct_io_size_kb).
constexpr std::uint64_t kBytesPerRead = std::uint64_t{16} << 20;

}  // namespace

std::optional<ReadError> DeviceFileReads::read(FileReader& file, Block& block, DeviceCopier& copier,
                                               const std::function<bool()>& is_cancelled) {
  try {
    if (!copier.wait_until_free(is_cancelled)) return std::nullopt;
    const CurrentContext current(copier.device());
    return file.read(block, is_cancelled,
                     [&](OpenFile& opened, const SegmentCursor& cursor, off_t offset) {
                       return read_some(opened, cursor, offset, copier.device());
                     });
  } catch (const DeviceFailure& failure) {
    return failure.error();
  }
}

ssize_t DeviceFileReads::read_some(OpenFile& file, const SegmentCursor& cursor, off_t offset,
                                   const CudaDevice& device) {
  const Segment piece = cursor.piece();
  const std::uint64_t bytes = std::min(piece.size, kBytesPerRead);
  if (piece.target == nullptr) return static_cast<ssize_t>(bytes);  // a gap is not read
  const auto handle = file.attachment([&](int descriptor) { return add(descriptor, device); });
  if (handle) {
    const ssize_t got = library_->read(handle.get(), piece.target, bytes, offset);
    if (got >= 0) return got;
    refusal_ = got == -1 ? errno : static_cast<int>(-got);
  }
  errno = ENOTSUP;
  return -1;
}

// A file is unregistered on the thread that closes it. This may be a thread of the consumer, so the
// call must not disturb the captures of this thread.
std::shared_ptr<void> DeviceFileReads::add(int descriptor, const CudaDevice& device) {
  int code = 0;
  std::shared_ptr<void> added = library_->add(descriptor, code);
  if (code != 0) refusal_ = code;
  if (!added) return nullptr;
  void* const file = added.get();
  return {file, [driver = device.shared_driver(), added = std::move(added)](void*) mutable {
            const RelaxedCapture relaxed(*driver);
            added.reset();
          }};
}

}  // namespace streamer
