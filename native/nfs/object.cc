#include "nfs/object.h"

#include <sys/stat.h>

#include <algorithm>
#include <string_view>

namespace streamer {

bool NfsAttributes::is_file() const { return S_ISREG(mode); }
bool NfsAttributes::is_folder() const { return S_ISDIR(mode); }
bool NfsAttributes::is_link() const { return S_ISLNK(mode); }

std::string NfsAttributes::version() const {
  return std::to_string(size) + "-" + std::to_string(modified_ns) + "-" +
         std::to_string(changed_ns);
}

std::optional<ReadError> NfsObject::check_opened(const NfsAttributes& attributes) {
  if (!attributes.is_file()) return error_of(ErrorCode::kIo, "not a regular file");
  const std::lock_guard lock(mutex_);
  if (version_.empty()) version_ = attributes.version();
  if (version_ != attributes.version()) {
    return error_of(ErrorCode::kChanged,
                    "the file was replaced or rewritten since its header was read");
  }
  if (attributes.size < size_bytes_) {
    return error_of(ErrorCode::kTruncated, "the file has " + std::to_string(attributes.size) +
                                               " bytes, not " + std::to_string(size_bytes_));
  }
  if (attributes.size > size_bytes_) {
    return error_of(ErrorCode::kChanged, "the file grew while it was read");
  }
  return std::nullopt;
}

std::optional<ReadError> check_unchanged(const NfsAttributes& opened, const NfsAttributes& now) {
  if (now.size < opened.size) {
    return error_of(ErrorCode::kTruncated, "the file was truncated while it was read");
  }
  // A rename of another file over this one changes the ctime of the open file, but not its bytes.
  const bool is_relinked = now.links != opened.links;
  const bool is_rewritten = now.size != opened.size || now.modified_ns != opened.modified_ns ||
                            now.inode != opened.inode ||
                            (!is_relinked && now.changed_ns != opened.changed_ns);
  if (is_rewritten) {
    return error_of(ErrorCode::kChanged, "the file was rewritten while it was read");
  }
  return std::nullopt;
}

std::optional<std::string> path_behind_link(const std::string& path, const std::string& target) {
  const bool is_absolute = !target.empty() && target.front() == '/';
  std::string_view rest = target;
  std::string resolved = is_absolute ? "" : path.substr(0, path.rfind('/'));
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view name = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (name == "..") {
      if (resolved.empty()) return std::nullopt;
      resolved.resize(resolved.rfind('/'));
    } else if (!name.empty() && name != ".") {
      resolved.append("/").append(name);
    }
  }
  return resolved.empty() ? "/" : resolved;
}

}  // namespace streamer
