#include "http/loopback_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace streamer {
namespace {

constexpr int kPollMs = 20;
constexpr auto kSlowPause = std::chrono::milliseconds(600);

bool send_all(int connection, const std::string& text) {
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t step = send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (step <= 0) return false;
    sent += static_cast<std::size_t>(step);
  }
  return true;
}

}  // namespace

LoopbackServer::LoopbackServer(std::string data, Script script)
    : data_(std::move(data)), script_(std::move(script)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_, generic, length) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, generic, &length) != 0) {
    throw std::runtime_error("cannot listen on loopback");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_connections(); });
}

LoopbackServer::~LoopbackServer() {
  is_stopping_ = true;
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
}

void LoopbackServer::accept_connections() {
  while (!is_stopping_) {
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, kPollMs) <= 0) continue;
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection < 0) continue;
    ++accepted_;
    connections_.emplace_back([this, connection] { serve(connection); });
  }
}

void LoopbackServer::serve(int connection) {
  std::string received;
  char buffer[4096];
  while (!is_stopping_) {
    pollfd waiting{connection, POLLIN, 0};
    if (poll(&waiting, 1, kPollMs) <= 0) continue;
    const ssize_t got = recv(connection, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    received.append(buffer, static_cast<std::size_t>(got));
    const std::size_t end = received.find("\r\n\r\n");
    if (end == std::string::npos) continue;
    if (!answer(connection, received.substr(0, end))) break;
    received.erase(0, end + 4);
  }
  close(connection);
  ++closed_;
}

std::string LoopbackServer::whole(const std::string& request) const {
  const std::string head = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: ";
  const bool is_head = request.starts_with("HEAD ");
  return head + std::to_string(data_.size()) + "\r\n\r\n" + (is_head ? "" : data_);
}

// Answers the request. Returns false if the connection must be closed.
bool LoopbackServer::answer(int connection, const std::string& request) {
  const int number = requests_++;
  const LoopbackFault fault = script_ ? script_(number) : LoopbackFault::kNone;
  if (fault == LoopbackFault::kUnavailable) {
    return send_all(connection, "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n");
  }
  if (fault == LoopbackFault::kCutAtOnce) return false;
  if (fault == LoopbackFault::kSilent) return true;
  unsigned long first = 0;
  unsigned long last = 0;
  const std::size_t at = request.find("Range: bytes=");
  if (at == std::string::npos) return send_all(connection, whole(request));
  if (std::sscanf(request.c_str() + at, "Range: bytes=%lu-%lu", &first, &last) != 2) return false;
  std::string body = data_.substr(first, last - first + 1);
  if (fault == LoopbackFault::kFlip) body[body.size() / 2] ^= 1;
  std::string head = "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\n";
  head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  head += "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/";
  head += std::to_string(data_.size()) + "\r\n\r\n";
  if (fault == LoopbackFault::kCut) {
    send_all(connection, head + body.substr(0, body.size() / 2));
    return false;
  }
  if (fault == LoopbackFault::kSlow) {
    if (!send_all(connection, head + body.substr(0, body.size() / 2))) return false;
    std::this_thread::sleep_for(kSlowPause);
    return send_all(connection, body.substr(body.size() / 2));
  }
  return send_all(connection, head + body);
}

}  // namespace streamer
