// A web server as slow as an object store: each response begins after a latency, and the speed of
// each connection is limited.
//
//   paced_server [--latency-us 30000] [--connect-us 0] [--connection-bytes 90000000]
//                [--total-bytes 0] [--slow-per-mille 0] [--slow-factor 10] FOLDER
//
// Prints its port and serves FOLDER on 127.0.0.1 until its standard input ends: GET and HEAD,
// single ranges, keep-alive. The first request of a connection waits `--connect-us` longer, as
// after a handshake. `--total-bytes` limits all connections together, in bytes per second; 0 is no
// limit. Of 1 000 responses, `--slow-per-mille` take `--slow-factor` times as long, for latency and
// body.
//
// One thread: files go from the page cache to the socket with sendfile, in slices of a few
// milliseconds, so that the server uses little of the client's processors. Use it on loopback only.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <queue>
#include <random>

#include "measured.h"

namespace {

using bench::Die;
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

struct Pace {
  size_t latency_us = 30'000;
  size_t connect_us = 0;
  size_t connection_bytes = 90'000'000;
  size_t total_bytes = 0;
  size_t slow_per_mille = 0;
  size_t slow_factor = 10;
};

Clock::duration TimeFor(double bytes, double bytes_per_second) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(bytes / bytes_per_second));
}

struct Connection {
  int socket = -1;
  int file = -1;
  bool is_first_request = true;
  std::string unread;  // received bytes of requests
  std::string head;    // of the response, until it is sent
  off_t offset = 0;    // in the file, where the next slice begins
  off_t end = 0;
  double bytes_per_second = 0;
  TimePoint next{};
  bool is_answering = false;
};

std::string LowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

class Server {
 public:
  Server(std::string folder, const Pace& pace) : folder_(std::move(folder)), pace_(pace) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0) Die("no port");
    if (listen(listener_, 1024) != 0) Die("cannot listen");
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    std::printf("%d\n", ntohs(address.sin_port));
    std::fflush(stdout);
    Watch(listener_, EPOLLIN, EPOLL_CTL_ADD);
    Watch(STDIN_FILENO, EPOLLIN, EPOLL_CTL_ADD);
  }

  void Run() {
    for (;;) {
      epoll_event events[64];
      const timespec patience = Patience();
      const int count = epoll_pwait2(epoll_, events, 64, &patience, nullptr);
      for (int i = 0; i < count; ++i) {
        const int descriptor = events[i].data.fd;
        if (descriptor == STDIN_FILENO) return;
        if (descriptor == listener_) {
          Accept();
        } else if (events[i].events & EPOLLOUT) {
          Watch(descriptor, EPOLLIN, EPOLL_CTL_MOD);
          Continue(descriptor);
        } else {
          Read(descriptor);
        }
      }
      while (!due_.empty() && due_.top().time <= Clock::now()) {
        const int descriptor = due_.top().descriptor;
        due_.pop();
        Continue(descriptor);
      }
    }
  }

 private:
  timespec Patience() const {
    using std::chrono::nanoseconds;
    nanoseconds left = std::chrono::seconds(1);
    if (!due_.empty()) left = std::min<nanoseconds>(left, due_.top().time - Clock::now());
    left = std::max(left, nanoseconds(0));
    return {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
  }

  void Watch(int descriptor, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    epoll_ctl(epoll_, operation, descriptor, &event);
  }

  void Accept() {
    for (;;) {
      const int accepted = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (accepted < 0) return;
      const int yes = 1;
      setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      connections_[accepted].socket = accepted;
      Watch(accepted, EPOLLIN, EPOLL_CTL_ADD);
    }
  }

  void Close(int descriptor) {
    const auto found = connections_.find(descriptor);
    if (found->second.file >= 0) close(found->second.file);
    connections_.erase(found);
    close(descriptor);
  }

  void Read(int descriptor) {
    Connection& connection = connections_.at(descriptor);
    char buffer[16384];
    const ssize_t count = recv(descriptor, buffer, sizeof buffer, 0);
    if (count == 0 || (count < 0 && errno != EAGAIN)) return Close(descriptor);
    if (count > 0) connection.unread.append(buffer, static_cast<size_t>(count));
    if (!connection.is_answering) Begin(connection);
  }

  // Returns the next request of the connection, if all of it has arrived.
  void Begin(Connection& connection) {
    const size_t end = connection.unread.find("\r\n\r\n");
    if (end == std::string::npos) return;
    const std::string request = connection.unread.substr(0, end + 2);
    connection.unread.erase(0, end + 4);
    Answer(connection, request);
    const bool is_slow = random_() % 1000 < pace_.slow_per_mille;
    const double factor = is_slow ? static_cast<double>(pace_.slow_factor) : 1;
    const double connect_us = connection.is_first_request ? double(pace_.connect_us) : 0;
    connection.is_first_request = false;
    connection.bytes_per_second = static_cast<double>(pace_.connection_bytes) / factor;
    connection.next =
        Clock::now() + TimeFor(connect_us + static_cast<double>(pace_.latency_us) * factor, 1e6);
    connection.is_answering = true;
    Schedule(connection.next, connection.socket);
  }

  void Answer(Connection& connection, const std::string& request) {
    const size_t path_begin = request.find(' ') + 1;
    const size_t path_end = request.find_first_of(" ?", path_begin);
    std::string path = request.substr(path_begin, path_end - path_begin);
    if (path.starts_with("http://")) path.erase(0, path.find('/', 7));  // as Run:ai's client asks
    struct stat status {};
    connection.file = path.find("..") == std::string::npos
                          ? open((folder_ + path).c_str(), O_RDONLY | O_CLOEXEC)
                          : -1;
    if (connection.file < 0 || fstat(connection.file, &status) != 0 || !S_ISREG(status.st_mode)) {
      connection.head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
      connection.offset = connection.end = 0;
      return;
    }
    unsigned long long first = 0, last = static_cast<unsigned long long>(status.st_size) - 1;
    const size_t range = LowerCase(request).find("\r\nrange: bytes=");
    const bool is_ranged = range != std::string::npos;
    if (is_ranged) std::sscanf(request.c_str() + range + 15, "%llu-%llu", &first, &last);
    last = std::min(last, static_cast<unsigned long long>(status.st_size) - 1);
    connection.offset = static_cast<off_t>(first);
    connection.end = static_cast<off_t>(last) + 1;
    char head[512];
    const int size = std::snprintf(
        head, sizeof head,
        "HTTP/1.1 %s\r\nContent-Length: %llu\r\nAccept-Ranges: bytes\r\nETag: \"%llx-%llx\"\r\n"
        "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: "
        "application/octet-stream\r\n",
        is_ranged ? "206 Partial Content" : "200 OK", last + 1 - first,
        static_cast<unsigned long long>(status.st_mtime),
        static_cast<unsigned long long>(status.st_size));
    connection.head.assign(head, static_cast<size_t>(size));
    if (is_ranged) {
      connection.head += "Content-Range: bytes " + std::to_string(first) + "-" +
                         std::to_string(last) + "/" + std::to_string(status.st_size) + "\r\n";
    }
    connection.head += "\r\n";
    if (request.starts_with("HEAD")) connection.end = connection.offset;
  }

  void Schedule(TimePoint time, int descriptor) { due_.push({time, turns_++, descriptor}); }

  // Sends the slice that is due, and returns when the next slice is due.
  void Continue(int descriptor) {
    const auto found = connections_.find(descriptor);
    if (found == connections_.end() || !found->second.is_answering) return;
    Connection& connection = found->second;
    const TimePoint now = Clock::now();
    if (connection.next > now) return Schedule(connection.next, descriptor), void();
    if (!connection.head.empty()) {
      if (send(descriptor, connection.head.data(), connection.head.size(), MSG_NOSIGNAL) < 0) {
        return Close(descriptor);
      }
      connection.head.clear();
    }
    if (connection.offset < connection.end) {
      if (pace_.total_bytes > 0 && total_next_ > now) {
        connection.next = total_next_;
        return Schedule(connection.next, descriptor), void();
      }
      double speed = connection.bytes_per_second;
      if (pace_.total_bytes > 0) speed = std::min(speed, static_cast<double>(pace_.total_bytes));
      const size_t slice =
          static_cast<size_t>(std::clamp(speed * kSliceS, 65536.0, 4.0 * (1 << 20)));
      const size_t left = static_cast<size_t>(connection.end - connection.offset);
      const ssize_t sent =
          sendfile(descriptor, connection.file, &connection.offset, std::min(slice, left));
      if (sent < 0 && errno == EAGAIN) return Watch(descriptor, EPOLLOUT, EPOLL_CTL_MOD);
      if (sent <= 0) return Close(descriptor);
      // A client that received too slowly does not get the missed bytes at full speed afterwards.
      connection.next = std::max(connection.next, now - std::chrono::milliseconds(20)) +
                        TimeFor(static_cast<double>(sent), connection.bytes_per_second);
      if (pace_.total_bytes > 0) {
        total_next_ = std::max(total_next_, now - std::chrono::milliseconds(5)) +
                      TimeFor(static_cast<double>(sent), static_cast<double>(pace_.total_bytes));
      }
      if (connection.offset < connection.end) return Schedule(connection.next, descriptor), void();
    }
    if (connection.file >= 0) close(std::exchange(connection.file, -1));
    connection.is_answering = false;
    Begin(connection);
  }

  static constexpr double kSliceS = 0.003;

  // Those that are due at the same time have their turns in the order in which they came: else the
  // limit of all together would starve some.
  struct Due {
    TimePoint time;
    size_t turn;
    int descriptor;
    auto operator<=>(const Due&) const = default;
  };

  const std::string folder_;
  const Pace pace_;
  const int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  int listener_ = -1;
  std::map<int, Connection> connections_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  size_t turns_ = 0;
  TimePoint total_next_{};
  std::minstd_rand random_{1};
};

}  // namespace

int main(int count, char** values) {
  Pace pace;
  std::string folder;
  const bench::Numbers numbers = {{"--latency-us", &pace.latency_us},
                                  {"--connect-us", &pace.connect_us},
                                  {"--connection-bytes", &pace.connection_bytes},
                                  {"--total-bytes", &pace.total_bytes},
                                  {"--slow-per-mille", &pace.slow_per_mille},
                                  {"--slow-factor", &pace.slow_factor}};
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    if (!text.starts_with("--")) {
      folder = text;
    } else if (++i == count) {
      Die(text + " needs a value");
    } else {
      bench::SetNumber(numbers, text, values[i]);
    }
  }
  if (folder.empty()) Die("paced_server [--latency-us N] ... FOLDER");
  std::signal(SIGPIPE, SIG_IGN);
  Server(folder, pace).Run();
}
