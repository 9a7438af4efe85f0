#include "nfs/object.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

namespace streamer {
namespace {

NfsAttributes file_of(std::uint64_t size) {
  NfsAttributes found;
  found.size = size;
  found.inode = 7;
  found.mode = S_IFREG | 0644;
  found.links = 1;
  found.modified_ns = 1000;
  found.changed_ns = 2000;
  return found;
}

NfsObject object_of(std::uint64_t size, std::string version = "") {
  return {parse_nfs_url("nfs://host/a"), {"127.0.0.1"}, size, std::move(version)};
}

TEST_CASE("the first opening pins the version, and later ones must match it") {
  NfsObject object = object_of(100);
  CHECK_FALSE(object.check_opened(file_of(100)));
  CHECK(object.version() == file_of(100).version());
  NfsAttributes other = file_of(100);
  other.changed_ns += 1;
  CHECK(object.check_opened(other)->code == ErrorCode::kChanged);
}

TEST_CASE("a version pinned by the caller must match too") {
  NfsObject object = object_of(100, "another");
  CHECK(object.check_opened(file_of(100))->code == ErrorCode::kChanged);
}

TEST_CASE("a file of another size, or no file at all, is refused") {
  CHECK(object_of(100).check_opened(file_of(99))->code == ErrorCode::kTruncated);
  CHECK(object_of(100).check_opened(file_of(101))->code == ErrorCode::kChanged);
  NfsAttributes folder = file_of(100);
  folder.mode = S_IFDIR | 0755;
  CHECK(object_of(100).check_opened(folder)->detail == "not a regular file");
}

TEST_CASE("a file that is rewritten while it is read is noticed, and one that is unlinked is not") {
  const NfsAttributes opened = file_of(100);
  CHECK_FALSE(check_unchanged(opened, opened));
  NfsAttributes now = opened;
  now.changed_ns += 1;
  CHECK(check_unchanged(opened, now)->code == ErrorCode::kChanged);
  now.links = 0;
  CHECK_FALSE(check_unchanged(opened, now));
  now.modified_ns += 1;
  CHECK(check_unchanged(opened, now)->code == ErrorCode::kChanged);
  CHECK(check_unchanged(opened, file_of(99))->code == ErrorCode::kTruncated);
  CHECK(check_unchanged(opened, file_of(101))->code == ErrorCode::kChanged);
}

TEST_CASE("the target of a link is relative to its folder, or to the root of the server") {
  CHECK(path_behind_link("/a/b/link", "real") == "/a/b/real");
  CHECK(path_behind_link("/a/b/link", "../../blobs/1") == "/blobs/1");
  CHECK(path_behind_link("/a/b/link", "./c//d/") == "/a/b/c/d");
  CHECK(path_behind_link("/a/b/link", "/export/x") == "/export/x");
  CHECK(path_behind_link("/link", "..") == std::nullopt);
  CHECK(path_behind_link("/a/link", "..") == "/");
  CHECK(path_behind_link("/a/link", "../../x") == std::nullopt);
}

}  // namespace
}  // namespace streamer
