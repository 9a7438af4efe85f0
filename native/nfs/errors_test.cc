#include "nfs/errors.h"

#include <doctest/doctest.h>

#include <cerrno>

namespace streamer {
namespace {

TEST_CASE("the protocol's error name decides if libnfs only reports a failure") {
  const ReadError error =
      nfs_error("read the file", -EFAULT, "NFS: Read failed with NFS3ERR_STALE(-70)");
  CHECK(error.code == ErrorCode::kChanged);
  CHECK(error.os_error == ESTALE);
  CHECK(error.storage_code == "NFS3ERR_STALE");
}

TEST_CASE("a sentence that contains a path is not shown") {
  const ReadError error =
      nfs_error("open the file", -ENOENT, "NFS4: (path /secret) failed with NFS4ERR_NOENT(-2)");
  CHECK(error.code == ErrorCode::kNotFound);
  CHECK(error.detail == "cannot open the file: there is no such file");
}

TEST_CASE("refusals are distinguished from failures") {
  CHECK(nfs_error("x", -EACCES, "").code == ErrorCode::kAccessDenied);
  CHECK(nfs_error("x", -EINVAL, "Insufficient ACCESS. Wanted 1").code == ErrorCode::kAccessDenied);
  CHECK(nfs_error("x", -ERANGE, "failed with NFS4ERR_WRONGSEC(-34)").code ==
        ErrorCode::kAccessDenied);
  CHECK(nfs_error("x", -EINTR, "Command was cancelled").code == ErrorCode::kConnect);
  CHECK(nfs_error("x", -EAGAIN, "NFS3ERR_JUKEBOX").code == ErrorCode::kTimeout);
  CHECK(nfs_error("x", -EXDEV, "").code == ErrorCode::kIo);
}

TEST_CASE("a stale handle, a lost lease and an I/O error are worth opening the file again") {
  CHECK(is_worth_reopening(nfs_error("x", -EFAULT, "NFS3ERR_STALE(-70)")));
  CHECK(is_worth_reopening(nfs_error("x", -ESTALE, "")));
  CHECK(is_worth_reopening(nfs_error("x", -ERANGE, "NFS4ERR_EXPIRED(-34)")));
  CHECK(is_worth_reopening(nfs_error("x", -EIO, "NFS4ERR_IO(-5)")));
  CHECK_FALSE(is_worth_reopening(nfs_error("x", -ENOENT, "NFS4ERR_NOENT(-2)")));
  CHECK_FALSE(is_worth_reopening(nfs_error("x", -EFAULT, "socket closed")));
}

}  // namespace
}  // namespace streamer
