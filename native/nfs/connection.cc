#include "nfs/connection.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>
#include <utility>

#include "nfs/errors.h"
#include "nfs/libnfs.h"

namespace streamer {
namespace {

// libnfs before version 5 accepts no larger response, and servers seldom send one.
constexpr std::uint64_t kLargestReadBytes = std::uint64_t{1} << 20;
constexpr int kMostLinks = 40;                     // the limit of Linux
constexpr std::uint64_t kLongestLinkBytes = 4096;  // PATH_MAX

std::int64_t nanoseconds(std::uint64_t seconds, std::uint64_t rest) {
  return static_cast<std::int64_t>(seconds) * 1'000'000'000 + static_cast<std::int64_t>(rest);
}

// libnfs names a client after its process and the second. If one process opened two connections in
// the same second, the server would take this for a restart, and would close the files of the first
// one.
void name_client(nfs_context* context) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  const std::string name = "streamer " + std::to_string(random()) + std::to_string(random());
  nfs4_set_client_name(context, name.c_str());
  std::array<char, 8> verifier{};
  const std::uint64_t number = random();
  std::memcpy(verifier.data(), &number, sizeof number);
  nfs4_set_verifier(context, verifier.data());
}

}  // namespace

NfsAttributes nfs_attributes(const void* attributes) {
  const auto& theirs = *static_cast<const nfs_stat_64*>(attributes);
  NfsAttributes ours;
  ours.size = theirs.nfs_size;
  ours.inode = theirs.nfs_ino;
  ours.mode = theirs.nfs_mode;
  ours.links = theirs.nfs_nlink;
  ours.modified_ns = nanoseconds(theirs.nfs_mtime, theirs.nfs_mtime_nsec);
  ours.changed_ns = nanoseconds(theirs.nfs_ctime, theirs.nfs_ctime_nsec);
  return ours;
}

void NfsConnection::Destroy::operator()(nfs_context* context) const {
  nfs_destroy_context(context);
}

NfsConnection::NfsConnection(const NfsUrl& url, const std::string& address,
                             const std::string& folder, const NfsTimeouts& timeouts)
    : timeouts_(timeouts), context_(nfs_init_context()) {
  if (!context_) throw std::bad_alloc();
  nfs_url* const parsed = nfs_parse_url_dir(context_.get(), url.settings_for_libnfs().c_str());
  if (parsed == nullptr) throw std::runtime_error("libnfs refuses the options of the URL");
  nfs_destroy_url(parsed);
  nfs_set_autoreconnect(context_.get(), 0);
  nfs_set_dircache(context_.get(), 0);  // a listing must never be older than its call
  if (url.version == 4) name_client(context_.get());
  PendingCall* const mount = add_call([this](int result, void*) {
    if (result == 0) {
      is_mounted_ = true;
    } else {
      failure_ = error_of("mount the export", result);
      const bool is_refused_connection = failure_->code == ErrorCode::kConnect;
      if (is_refused_connection) failure_->detail = "no connection to the NFS server";
    }
  });
  const int queued =
      nfs_mount_async(context_.get(), address.c_str(), folder.c_str(), &on_answer, mount);
  if (queued != 0) fail(ErrorCode::kConnect, "no connection to the NFS server");
}

NfsConnection::~NfsConnection() {
  is_ending_ = true;
  context_.reset();  // ends every call with "cancelled"; on_answer ignores these answers
}

int NfsConnection::descriptor() { return nfs_get_fd(context_.get()); }

short NfsConnection::events() { return static_cast<short>(nfs_which_events(context_.get())); }

void NfsConnection::service(short events) {
  if (failure_) return;
  if (nfs_service(context_.get(), events) == 0) return;
  // If the server refused the mount, failure_ has the reason, and stays. A kConnect failure has no
  // details, so it is replaced by the text below.
  if (failure_ && failure_->code == ErrorCode::kConnect) failure_.reset();
  fail(ErrorCode::kConnect, is_mounted_ ? "the connection to the NFS server was lost"
                                        : "no connection to the NFS server");
}

void NfsConnection::enforce_deadlines(TimePoint now) {
  if (failure_) return;
  const bool is_overdue =
      std::any_of(pending_calls_.begin(), pending_calls_.end(),
                  [now](const PendingCall& call) { return now > call.deadline; });
  if (is_mounted_ && is_overdue) return fail(ErrorCode::kTimeout, "the NFS server does not answer");
  const double waited_s = seconds_between(progress_at_, now);
  if (!is_mounted_) {
    if (waited_s > timeouts_.connect_s) {
      fail(ErrorCode::kTimeout, "no connection to the NFS server within the connect time-out");
    }
    return;
  }
  const std::uint64_t received = received_bytes();
  const auto brought = static_cast<double>(received - progress_bytes_);
  if (is_idle() || brought >= timeouts_.stall_bytes_per_s * timeouts_.stall_s) {
    progress_at_ = now;
    progress_bytes_ = received;
  } else if (waited_s > timeouts_.stall_s) {
    fail(ErrorCode::kTimeout, "the NFS server does not answer");
  }
}

void NfsConnection::look_up(const std::string& path, Answer<Found> answer) {
  look_further(path, 0, std::make_shared<Answer<Found>>(std::move(answer)));
}

void NfsConnection::look_further(std::string path, int links,
                                 std::shared_ptr<Answer<Found>> answer) {
  PendingCall* const call = add_call([this, path, links, answer](int result, void* data) {
    if (result < 0) return (*answer)(error_of("stat the file", result), {});
    const NfsAttributes attributes = nfs_attributes(data);
    if (!attributes.is_link()) return (*answer)(std::nullopt, {path, attributes});
    follow({path, attributes}, links, answer);
  });
  check_queued(nfs_lstat64_async(context_.get(), path.c_str(), &on_answer, call), "stat");
}

void NfsConnection::follow(const Found& link, int links, std::shared_ptr<Answer<Found>> answer) {
  PendingCall* const call = add_call([this, link, links, answer](int result, void* data) {
    if (result < 0) return (*answer)(error_of("follow the link", result), {});
    // libnfs 4 does not terminate the text. Its length is the size of the link.
    const auto* const text = static_cast<const char*>(data);
    const std::string says(text, strnlen(text, std::min(link.attributes.size, kLongestLinkBytes)));
    const std::optional<std::string> target = path_behind_link(link.path, says);
    if (target && links < kMostLinks) return look_further(*target, links + 1, answer);
    ReadError error;
    error.code = ErrorCode::kNotFound;
    error.os_error = target ? ELOOP : ENOENT;
    error.detail = target ? "too many links lead to the file" : "the link leads out of the export";
    (*answer)(std::move(error), {});
  });
  check_queued(nfs_readlink_async(context_.get(), link.path.c_str(), &on_answer, call),
               "read a link");
}

void NfsConnection::list(const std::string& path, Answer<nfsdir*> answer) {
  PendingCall* const call = add_call([this, answer = std::move(answer)](int result, void* data) {
    if (result < 0) return answer(error_of("list the folder", result), nullptr);
    answer(std::nullopt, static_cast<nfsdir*>(data));
  });
  check_queued(nfs_opendir_async(context_.get(), path.c_str(), &on_answer, call), "list");
}

void NfsConnection::open(const std::string& path, Answer<nfsfh*> answer) {
  PendingCall* const call = add_call([this, answer = std::move(answer)](int result, void* data) {
    if (result < 0) return answer(error_of("open the file", result), nullptr);
    answer(std::nullopt, static_cast<nfsfh*>(data));
  });
  check_queued(nfs_open_async(context_.get(), path.c_str(), O_RDONLY, &on_answer, call), "open");
}

void NfsConnection::close(nfsfh* file, Answer<int> answer) {
  PendingCall* const call = add_call([this, answer = std::move(answer)](int result, void*) {
    if (result < 0) return answer(error_of("close the file", result), 0);
    answer(std::nullopt, 0);
  });
  check_queued(nfs_close_async(context_.get(), file, &on_answer, call), "close");
}

void NfsConnection::attributes(nfsfh* file, Answer<NfsAttributes> answer) {
  PendingCall* const call = add_call([this, answer = std::move(answer)](int result, void* data) {
    if (result < 0) return answer(error_of("stat the file", result), {});
    answer(std::nullopt, nfs_attributes(data));
  });
  check_queued(nfs_fstat64_async(context_.get(), file, &on_answer, call), "stat");
}

void NfsConnection::read(nfsfh* file, std::byte* buffer, std::uint64_t offset, std::uint64_t size,
                         Answer<Bytes> answer) {
  PendingCall* const call = add_call(
      [this, buffer, size, answer = std::move(answer)](int result, void* data) {
        if (result < 0) return answer(error_of("read the file", result), {});
        const auto got = static_cast<std::uint64_t>(result);
        if (got > size) {
          ReadError error;
          error.detail = "the NFS server sent more bytes than requested";
          return answer(std::move(error), {});
        }
        answer(std::nullopt, {kLibnfsFillsBuffers ? buffer : static_cast<std::byte*>(data), got});
      },
      Reply::kData);
  check_queued(request_bytes(context_.get(), file, buffer, offset, size, &on_answer, call), "read");
}

std::uint64_t NfsConnection::read_bytes() {
  const std::uint64_t most = nfs_get_readmax(context_.get());  // 0 for version 4 before libnfs 5
  return most == 0 ? kLargestReadBytes : std::min(most, kLargestReadBytes);
}

void NfsConnection::on_answer(int result, nfs_context* /*context*/, void* data,
                              void* argument) noexcept {
  auto* const call = static_cast<PendingCall*>(argument);
  NfsConnection& connection = *call->connection;
  if (connection.is_ending_) return;
  const Raw answer = std::move(call->answer);
  connection.pending_calls_.erase(call->position);
  try {
    answer(result, data);
  } catch (const std::exception& failure) {  // the C code of libnfs cannot handle exceptions
    connection.fail(ErrorCode::kIo, std::string("the engine failed: ") + failure.what());
  }
}

NfsConnection::PendingCall* NfsConnection::add_call(Raw answer, Reply what) {
  const TimePoint now = Clock::now();
  if (pending_calls_.empty()) {  // no earlier call waits for an answer
    progress_at_ = now;
    progress_bytes_ = received_bytes();
  }
  const TimePoint deadline =
      what == Reply::kData ? TimePoint::max() : after(now, timeouts_.stall_s);
  pending_calls_.push_back({this, std::move(answer), deadline, {}});
  pending_calls_.back().position = std::prev(pending_calls_.end());
  return &pending_calls_.back();
}

void NfsConnection::check_queued(int queued, const char* action) {
  if (queued != 0)
    fail(ErrorCode::kConnect, std::string("libnfs cannot ask the server to ") + action);
}

ReadError NfsConnection::error_of(const char* action, int result) {
  const char* const sentence = nfs_get_error(context_.get());
  return nfs_error(action, result, sentence == nullptr ? "" : sentence);
}

void NfsConnection::fail(ErrorCode code, std::string detail) {
  if (failure_) return;
  failure_.emplace();
  failure_->code = code;
  failure_->detail = std::move(detail);
}

// Returns how many bytes the socket has received, including parts of unfinished answers.
std::uint64_t NfsConnection::received_bytes() {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (!context_ || getsockopt(descriptor(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_received;
}

}  // namespace streamer
