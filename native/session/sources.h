// The objects of a session, numbered in the order they are added, and which lane reads each.
//
// Not thread-safe while objects are added; afterwards the objects look after themselves.
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
  // Asks for the addresses of the URL's server, once for each server and never after one was found
  // to have none. Throws std::invalid_argument for a URL that is none.
  void add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version,
               const NamePatience& patience);
  void add_python(const std::string& server);

  const std::vector<Lane>& lanes() const { return lanes_; }
  bool has(Lane lane) const;
  // All by source, null for others.
  const std::vector<std::unique_ptr<FileReader>>& files() const { return files_; }
  const std::vector<std::unique_ptr<HttpObject>>& objects() const { return objects_; }
  const std::vector<std::unique_ptr<NfsObject>>& nfs_files() const { return nfs_files_; }
  // Of the server of each source; null where none is asked.
  std::vector<std::shared_ptr<Endpoint>> endpoints() const;
  // An NFS server without address: it ends the load.
  const std::optional<ReadError>& lookup_error() const { return lookup_error_; }

  // What was read of an object: text that changes when its content does. Empty where unknown.
  std::string version(std::uint32_t source) const;

 private:
  void add(Lane lane);

  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<FileReader>> files_;
  std::vector<std::unique_ptr<HttpObject>> objects_;
  std::vector<std::unique_ptr<NfsObject>> nfs_files_;
  std::vector<std::shared_ptr<Endpoint>> python_servers_;
  std::map<std::string, std::vector<std::string>> addresses_;  // by NFS server
  std::optional<ReadError> lookup_error_;
};

}  // namespace streamer
