// The objects of a session, numbered in the order in which they are added, and the lane that reads
// each.
//
// Not thread-safe while objects are added. Afterwards, each object does its own locking.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/read_error.h"
#include "http/object.h"
#include "io/file_reader.h"
#include "net/server_addresses.h"
#include "nfs/object.h"
#include "plan/lane.h"

namespace streamer {

class Sources {
 public:
  void add_file(std::unique_ptr<FileReader> file);
  void add_http(std::unique_ptr<HttpObject> object);
  // Looks up the addresses of the URL's server, once for each server, and no further servers after
  // one without address. Throws std::invalid_argument if the URL is invalid.
  void add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version,
               const NameLookupLimits& limits);
  void add_python(const std::string& server);

  const std::vector<Lane>& lanes() const { return lanes_; }
  bool has(Lane lane) const;
  // These are indexed by source, and null for other kinds of sources.
  const std::vector<std::unique_ptr<FileReader>>& files() const { return files_; }
  const std::vector<std::unique_ptr<HttpObject>>& objects() const { return objects_; }
  const std::vector<std::unique_ptr<NfsObject>>& nfs_files() const { return nfs_files_; }
  // Returns the endpoint of each source's server; null for a source without a server.
  std::vector<std::shared_ptr<Endpoint>> endpoints() const;
  // Returns the bytes that each source has given: those that landed; for HTTP, those that came.
  std::vector<std::uint64_t> received_bytes(std::vector<std::uint64_t> landed_bytes) const;
  // Returns the error of an NFS server without address, which ends the load.
  const std::optional<ReadError>& lookup_error() const { return lookup_error_; }

  // Returns text that changes when the content of the object changes; empty if it is unknown.
  std::string version(std::uint32_t source) const;

 private:
  void add(Lane lane);

  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<FileReader>> files_;
  std::vector<std::unique_ptr<HttpObject>> objects_;
  std::vector<std::unique_ptr<NfsObject>> nfs_files_;
  std::vector<std::shared_ptr<Endpoint>> python_servers_;
  std::map<std::string, std::vector<std::string>> addresses_;  // key: the name of the NFS server
  std::optional<ReadError> lookup_error_;
};

}  // namespace streamer
