#include "session/sources.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace streamer {

void Sources::add(Lane lane) {
  lanes_.push_back(lane);
  files_.resize(lanes_.size());
  objects_.resize(lanes_.size());
  nfs_files_.resize(lanes_.size());
  python_servers_.resize(lanes_.size());
}

void Sources::add_file(std::unique_ptr<FileReader> file) {
  add(Lane::kFile);
  files_.back() = std::move(file);
}

void Sources::add_http(std::unique_ptr<HttpObject> object) {
  add(Lane::kHttp);
  objects_.back() = std::move(object);
}

void Sources::add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version,
                      const NameLookupLimits& limits) {
  NfsUrl parsed = parse_nfs_url(url);
  std::vector<std::string>& addresses = addresses_[parsed.server];
  if (addresses.empty() && !lookup_error_) {
    auto looked_up = addresses_of(parsed.server, limits);
    if (auto* error = std::get_if<ReadError>(&looked_up)) {
      error->source = static_cast<std::uint32_t>(lanes_.size());
      lookup_error_ = std::move(*error);
    } else {
      addresses = std::get<std::vector<std::string>>(std::move(looked_up));
    }
  }
  auto file =
      std::make_unique<NfsObject>(std::move(parsed), addresses, size_bytes, std::move(version));
  add(Lane::kNfs);
  nfs_files_.back() = std::move(file);
}

void Sources::add_python(const std::string& server) {
  add(Lane::kPython);
  python_servers_.back() = Endpoint::of(server);
}

bool Sources::has(Lane lane) const {
  return std::find(lanes_.begin(), lanes_.end(), lane) != lanes_.end();
}

std::vector<std::shared_ptr<Endpoint>> Sources::endpoints() const {
  std::vector<std::shared_ptr<Endpoint>> endpoints = python_servers_;
  for (std::size_t source = 0; source < endpoints.size(); ++source) {
    if (objects_[source]) endpoints[source] = objects_[source]->target()->endpoint;
    if (nfs_files_[source]) endpoints[source] = nfs_files_[source]->endpoint();
  }
  return endpoints;
}

std::vector<std::uint64_t> Sources::received_bytes(std::vector<std::uint64_t> landed_bytes) const {
  for (std::size_t source = 0; source < landed_bytes.size(); ++source) {
    if (objects_[source]) landed_bytes[source] = objects_[source]->received_bytes();
  }
  return landed_bytes;
}

std::string Sources::version(std::uint32_t source) const {
  if (files_.at(source)) return files_[source]->version();
  if (objects_[source]) return objects_[source]->version();
  if (nfs_files_[source]) return nfs_files_[source]->version();
  return {};
}

}  // namespace streamer
