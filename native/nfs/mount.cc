#include "nfs/mount.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace streamer {
namespace {

constexpr double kCloseFilesS = 0.3;  // the load has ended, and closing files must not delay it

// Version 4 has one tree for each server, version 3 has one for each export. Only the server knows
// where an export begins, but the file's folder is always inside it.
std::string mounted_folder(const NfsUrl& url) {
  if (url.version == 4) return "/";
  const std::size_t slash = url.path.rfind('/');
  return slash == 0 ? "/" : url.path.substr(0, slash);
}

std::string path_in_mount(const NfsUrl& url) {
  return url.version == 4 ? url.path : url.path.substr(url.path.rfind('/'));
}

}  // namespace

NfsMount::NfsMount(const NfsObject& object, unsigned attempt, const NfsTimeouts& timeouts)
    : connection_(std::make_unique<NfsConnection>(
          object.url(), object.addresses()[attempt % object.addresses().size()],
          mounted_folder(object.url()), timeouts)) {}

NfsMount::~NfsMount() { disconnect(); }

std::string NfsMount::name_of(const NfsObject& object) {
  return object.url().server + " " + mounted_folder(object.url()) + " " +
         object.url().settings_for_libnfs();
}

void NfsMount::start(Block block, const OutageTicket& ticket, NfsObject& object, TimePoint now) {
  files_.try_emplace(block.source, File{&object, nullptr, false, {}});
  transfers_.push_back(std::make_unique<NfsTransfer>(std::move(block), ticket, now));
}

void NfsMount::enforce_block_deadline(TimePoint now, double block_deadline_s) {
  for (const auto& transfer : transfers_) {
    const bool is_overdue = seconds_between(transfer->first_started(), now) > block_deadline_s;
    if (!is_overdue || transfer->is_done()) continue;
    transfer->fail(error_of(ErrorCode::kTimeout, "the block's time is up (block_deadline_s)"));
  }
}

void NfsMount::advance() {
  if (is_broken() || !connection_->is_ready()) return;
  for (const auto& transfer : transfers_) {
    if (transfer->has_begun() || transfer->is_done()) continue;
    File& file = files_.at(transfer->source());
    if (file.is_open) {
      transfer->begin(*connection_, file.handle, file.opened);
    } else if (!is_opening_) {
      open(transfer->source(), file);
    }
    if (connection_->failure()) return;
  }
}

void NfsMount::open(std::uint32_t source, File& file) {
  is_opening_ = true;
  const auto on_looked_up = [this, source, &file](std::optional<ReadError> error,
                                                  const NfsConnection::Found& behind_links) {
    if (!error) error = file.object->check_opened(behind_links.attributes);
    if (error) return fail_file(source, std::move(*error));
    open_found(source, file, behind_links.path);
  };
  connection_->look_up(path_in_mount(file.object->url()), on_looked_up);
}

void NfsMount::open_found(std::uint32_t source, File& file, const std::string& path) {
  const auto opened = [this, source, &file](std::optional<ReadError> error, nfsfh* handle) {
    if (error) return fail_file(source, std::move(*error));
    file.handle = handle;
    check_attributes(source, file);
  };
  connection_->open(path, opened);
}

void NfsMount::check_attributes(std::uint32_t source, File& file) {
  const auto on_attributes = [this, source, &file](std::optional<ReadError> error,
                                                   NfsAttributes attributes) {
    is_opening_ = false;
    if (!error) error = file.object->check_opened(attributes);
    if (error) return fail_file(source, std::move(*error));
    file.opened = attributes;
    file.is_open = true;
  };
  connection_->attributes(file.handle, on_attributes);
}

void NfsMount::fail_file(std::uint32_t source, ReadError error) {
  for (const auto& transfer : transfers_) {
    if (transfer->source() == source && !transfer->is_done()) transfer->fail(error);
  }
}

std::vector<NfsMount::Outcome> NfsMount::collect(TimePoint now) {
  std::vector<Outcome> outcomes;
  bool has_failed = connection_->failure().has_value();
  for (auto& transfer : transfers_) {
    if (!transfer->is_done()) continue;
    std::optional<ReadError> error = transfer->take_error(now);
    has_failed = has_failed || error.has_value();
    outcomes.push_back({std::move(transfer), std::move(error)});
  }
  transfers_.erase(std::remove(transfers_.begin(), transfers_.end(), nullptr), transfers_.end());
  if (!has_failed) return outcomes;
  const std::optional<ReadError> failure = connection_->failure();
  disconnect();
  for (auto& transfer : transfers_) {
    if (failure) transfer->fail(*failure);
    std::optional<ReadError> error = transfer->take_error(now);
    const bool was_given_up = !error;
    outcomes.push_back({std::move(transfer), std::move(error), was_given_up});
  }
  transfers_.clear();
  return outcomes;
}

void NfsMount::close_files() {
  const TimePoint deadline = after(Clock::now(), kCloseFilesS);
  while (!is_broken() && !connection_->failure() && close_one(deadline)) {
  }
}

// Closes one open file. Returns false if no open file is left, or the time is over.
bool NfsMount::close_one(TimePoint deadline) {
  const auto open = std::find_if(files_.begin(), files_.end(),
                                 [](const auto& entry) { return entry.second.handle != nullptr; });
  if (open == files_.end()) return false;
  bool is_closed = false;
  connection_->close(std::exchange(open->second.handle, nullptr),
                     [&is_closed](const std::optional<ReadError>&, int) { is_closed = true; });
  while (!is_closed && !connection_->failure()) {
    const double left_s = seconds_between(Clock::now(), deadline);
    if (left_s <= 0) {
      disconnect();  // because the callback refers to this stack frame
      return false;
    }
    pollfd waiting{connection_->descriptor(), connection_->events(), 0};
    if (poll(&waiting, 1, static_cast<int>(left_s * 1e3) + 1) > 0) {
      connection_->service(waiting.revents);
    }
  }
  return true;
}

void NfsMount::disconnect() {
  if (is_broken()) return;
  for (auto& [source, file] : files_) {
    // The connection sends nothing any more, but libnfs only frees a handle when it is closed.
    if (file.handle == nullptr) continue;
    connection_->close(std::exchange(file.handle, nullptr),
                       [](const std::optional<ReadError>&, int) {});
  }
  connection_.reset();
}

}  // namespace streamer
