#include "io/inside_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>

namespace streamer {
namespace {

// Returns the path of an open file; empty if the kernel does not report it.
std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = readlink(link.c_str(), path.data(), path.size());
  return size < 0 ? std::string() : std::string(path.data(), static_cast<std::size_t>(size));
}

bool is_inside_open_folder(int folder, int file) {
  std::string prefix = path_of(folder);
  const std::string path = path_of(file);
  if (!prefix.ends_with('/')) prefix += '/';
  if (path.size() <= prefix.size() || !path.starts_with(prefix)) return false;
  struct stat found {};
  struct stat opened {};
  if (fstat(file, &opened) != 0) return false;
  // The file was replaced since; the version check reports this.
  if (opened.st_nlink == 0) return true;
  return fstatat(folder, path.c_str() + prefix.size(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
         found.st_dev == opened.st_dev && found.st_ino == opened.st_ino;
}

}  // namespace

bool lies_inside(int file, const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool is_inside = is_inside_open_folder(descriptor, file);
  close(descriptor);
  return is_inside;
}

}  // namespace streamer
