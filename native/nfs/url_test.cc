#include "nfs/url.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

namespace streamer {
namespace {

TEST_CASE("a URL has a server, a path and options") {
  const NfsUrl url =
      parse_nfs_url("nfs://host/export/a.bin?version=3&nfsport=20490&mountport=20480&uid=0&gid=7");
  CHECK(url.server == "host");
  CHECK(url.path == "/export/a.bin");
  CHECK(url.version == 3);
  CHECK(url.nfs_port == 20490);
  CHECK(url.mount_port == 20480);
  CHECK(url.uid == 0);
  CHECK(url.gid == 7);
}

TEST_CASE("without options, the version is 4 and the user is that of the process") {
  const NfsUrl url = parse_nfs_url("nfs://host/export");
  CHECK(url.version == 4);
  CHECK(url.nfs_port == 0);
  CHECK_FALSE(url.uid);
}

TEST_CASE("a port may follow the server, for any kind of address") {
  CHECK(parse_nfs_url("nfs://10.0.0.1:2050/a").nfs_port == 2050);
  CHECK(parse_nfs_url("nfs://[::1]:2050/a").server == "::1");
  CHECK(parse_nfs_url("nfs://[::1]:2050/a").nfs_port == 2050);
  CHECK(parse_nfs_url("nfs://[fe80::1]/a").nfs_port == 0);
}

TEST_CASE("a path is used literally") {
  for (const std::string path : {"/a b", "/plus+percent%20", "/größe", "/a#b", "/a@b:c",
                                 "/what?.bin", "/model-?.safetensors", "/a?b=c/d?x y"}) {
    CAPTURE(path);
    CHECK(parse_nfs_url("nfs://host" + path).path == path);
    CHECK(parse_nfs_url("nfs://host" + path + "?version=4").path == path);
  }
  CHECK(parse_nfs_url("nfs://host").path == "/");
}

TEST_CASE("an invalid URL is refused") {
  for (const std::string url :
       {"nfs:///export", "nfs://", "s3://host/a", "nfs://user@host/a", "nfs://host:0/a",
        "nfs://host:x/a", "nfs://[::1/a", "nfs://host/a?version=5", "nfs://host/a?nfsport=65536",
        "nfs://host/a?uid=-1", "nfs://host/a?readahead=1",
        "nfs://host/a?version=4&autoreconnect=-1", "nfs://host/a?version="}) {
    CAPTURE(url);
    CHECK_THROWS_AS(parse_nfs_url(url), std::invalid_argument);
  }
  CHECK_THROWS_AS(parse_nfs_url(std::string("nfs://host/a\0b", 14)), std::invalid_argument);
}

TEST_CASE("another version is another service") {
  CHECK(parse_nfs_url("nfs://host:9/a?version=4").server_name() == "nfs://host:9");
  CHECK(parse_nfs_url("nfs://host:9/a?version=3").server_name() == "nfs://host:9?version=3");
}

TEST_CASE("libnfs gets the options, but no part of the path") {
  CHECK(parse_nfs_url("nfs://host:9/a?uid=1&gid=2").settings_for_libnfs() ==
        "nfs://server/?version=4&nfsport=9&uid=1&gid=2");
}

}  // namespace
}  // namespace streamer
