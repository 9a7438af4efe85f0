#include "io/other_readers.h"

#include <fcntl.h>
#include <unistd.h>

namespace streamer {
namespace {

// The offset is near the largest that Linux allows, and far from the locks of databases and other
// programs.
constexpr off_t kMarkedByte = 0x7374'7265'616d'6572;  // "streamer"

struct flock lock_of(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = kMarkedByte;
  lock.l_len = 1;
  return lock;
}

}  // namespace

void mark_as_read(int descriptor) {
  struct flock lock = lock_of(F_RDLCK);
  fcntl(descriptor, F_OFD_SETLK, &lock);
}

bool has_other_readers(int descriptor) {
  struct flock lock = lock_of(F_WRLCK);
  return fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_RDLCK;
}

}  // namespace streamer
