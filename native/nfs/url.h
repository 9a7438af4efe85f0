// Parses an nfs:// URL: a server, a path on it, and options. Pure.
//
// nfs://server[:port]/export/path[?version=4&nfsport=…&mountport=…&uid=…&gid=…]
//
// The path is used literally, as in all URLs of this package: nothing is decoded. The text after
// the last '?' is parsed as options only if it has their form (name=value, joined by '&').
// Otherwise the '?' belongs to a name or a glob. Unknown options are refused, because the engine
// itself sets the options of libnfs that change how it reads (readahead, autoreconnect, …).
#pragma once

#include <optional>
#include <string>

namespace streamer {

struct NfsUrl {
  std::string server;  // a name, an IPv4 address, or an IPv6 address without its brackets
  std::string path;    // starts with '/'
  // Version 4 needs one port, no port mapper and no mount daemon. Version 3 must be requested.
  int version = 4;
  int nfs_port = 0;        // 0: port 2049 for version 4, the port mapper's answer for version 3
  int mount_port = 0;      // version 3 only; 0: the port mapper's answer
  std::optional<int> uid;  // empty: the ids of this process
  std::optional<int> gid;

  // Returns "nfs://server:port", for messages and as the endpoint's name. A version other than the
  // default is part of the name, because it is a separate service: an outage of one version says
  // nothing about the other.
  std::string server_name() const;
  // Returns the server's options as a URL for libnfs. The path is left out, because libnfs would
  // parse options in it.
  std::string settings_for_libnfs() const;
};

// Throws std::invalid_argument with the reason if the URL is invalid.
NfsUrl parse_nfs_url(const std::string& url);

}  // namespace streamer
