#include "nfs/url.h"

#include <charconv>
#include <climits>
#include <stdexcept>
#include <string_view>

namespace streamer {
namespace {

constexpr std::string_view kScheme = "nfs://";
constexpr int kHighestPort = 65535;

bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == text.npos;
}

bool reads_like_options(std::string_view text) {
  while (true) {
    const std::size_t end = text.find('&');
    const std::string_view option = text.substr(0, end);
    const std::size_t equals = option.find('=');
    if (equals == option.npos || !is_name(option.substr(0, equals))) return false;
    if (end == text.npos) return true;
    text.remove_prefix(end + 1);
  }
}

int number_of(std::string_view name, std::string_view text, int lowest, int highest) {
  int number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && rest == text.data() + text.size();
  if (is_whole && number >= lowest && number <= highest) return number;
  throw std::invalid_argument(std::string(name) + " must be a number from " +
                              std::to_string(lowest) + " to " + std::to_string(highest));
}

void set_option(NfsUrl& url, std::string_view name, std::string_view value) {
  if (name == "version") {
    url.version = number_of(name, value, 3, 4);
  } else if (name == "nfsport") {
    url.nfs_port = number_of(name, value, 1, kHighestPort);
  } else if (name == "mountport") {
    url.mount_port = number_of(name, value, 1, kHighestPort);
  } else if (name == "uid") {
    url.uid = number_of(name, value, 0, INT_MAX);
  } else if (name == "gid") {
    url.gid = number_of(name, value, 0, INT_MAX);
  } else {
    throw std::invalid_argument("unknown option " + std::string(name) +
                                "; the options are version, nfsport, mountport, uid and gid");
  }
}

void set_options(NfsUrl& url, std::string_view text) {
  while (true) {
    const std::size_t end = text.find('&');
    const std::string_view option = text.substr(0, end);
    const std::size_t equals = option.find('=');
    set_option(url, option.substr(0, equals), option.substr(equals + 1));
    if (end == text.npos) return;
    text.remove_prefix(end + 1);
  }
}

void set_server(NfsUrl& url, std::string_view authority) {
  if (authority.find('@') != authority.npos) {
    throw std::invalid_argument(
        "an NFS URL cannot contain a user name; use the options uid and gid");
  }
  std::size_t colon = authority.rfind(':');
  if (!authority.empty() && authority.front() == '[') {
    const std::size_t close = authority.find(']');
    if (close == authority.npos)
      throw std::invalid_argument("the server's address lacks its closing ]");
    url.server = authority.substr(1, close - 1);
    colon =
        close + 1 < authority.size() && authority[close + 1] == ':' ? close + 1 : authority.npos;
  } else {
    url.server = authority.substr(0, colon);
  }
  if (url.server.empty()) throw std::invalid_argument("the URL names no server");
  if (colon != authority.npos) {
    url.nfs_port = number_of("the port", authority.substr(colon + 1), 1, kHighestPort);
  }
}

}  // namespace

std::string NfsUrl::server_name() const {
  std::string name = "nfs://" + server;
  if (nfs_port != 0) name.append(":").append(std::to_string(nfs_port));
  if (version != NfsUrl().version) name.append("?version=").append(std::to_string(version));
  return name;
}

std::string NfsUrl::settings_for_libnfs() const {
  std::string text = "nfs://server/?version=" + std::to_string(version);
  if (nfs_port != 0) text += "&nfsport=" + std::to_string(nfs_port);
  if (mount_port != 0) text += "&mountport=" + std::to_string(mount_port);
  if (uid) text += "&uid=" + std::to_string(*uid);
  if (gid) text += "&gid=" + std::to_string(*gid);
  return text;
}

NfsUrl parse_nfs_url(const std::string& text) {
  std::string_view rest = text;
  if (rest.substr(0, kScheme.size()) != kScheme) throw std::invalid_argument("not an nfs:// URL");
  if (rest.find('\0') != rest.npos) throw std::invalid_argument("a path cannot contain a NUL");
  rest.remove_prefix(kScheme.size());
  NfsUrl url;
  std::string_view options;
  const std::size_t mark = rest.rfind('?');
  if (mark != rest.npos && reads_like_options(rest.substr(mark + 1))) {
    options = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  const std::size_t slash = rest.find('/');
  set_server(url, rest.substr(0, slash));
  url.path = slash == rest.npos ? "/" : rest.substr(slash);
  if (!options.empty()) set_options(url, options);
  return url;
}

}  // namespace streamer
