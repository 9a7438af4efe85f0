// What an nfs:// URL names: a server, a path on it, and how to speak with it. Pure.
//
// nfs://server[:port]/export/path[?version=4&nfsport=…&mountport=…&uid=…&gid=…]
//
// A path is taken letter by letter, as all URLs of this package: nothing is decoded. What follows
// the last '?' is options only where it reads like options (name=value, joined by '&'); else that
// '?' is a letter of a name or of a glob. Unknown options are refused: those of libnfs that change
// how it reads (readahead, autoreconnect, …) are ours to decide.
#pragma once

#include <optional>
#include <string>

namespace streamer {

struct NfsUrl {
  std::string server;  // a name, an IPv4 address, or an IPv6 address without its brackets
  std::string path;    // starts with '/'
  // 4: one port, no port mapper, no mount daemon. 3 must be asked for.
  int version = 4;
  int nfs_port = 0;        // 0: 2049 for version 4, what the port mapper says for 3
  int mount_port = 0;      // version 3 only; 0: what the port mapper says
  std::optional<int> uid;  // empty: this process's own
  std::optional<int> gid;

  // "nfs://server:port", for messages, and to know it again. With another version than the usual
  // one it is another service: that one of them is away says nothing about the other.
  std::string server_name() const;
  // The same server and options in libnfs's own spelling. The path is left out: libnfs would look
  // for options in it.
  std::string settings_for_libnfs() const;
};

// Throws std::invalid_argument, whose text says what is wrong with the URL.
NfsUrl parse_nfs_url(const std::string& url);

}  // namespace streamer
