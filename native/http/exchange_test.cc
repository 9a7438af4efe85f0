#include "http/exchange.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "base/clock.h"
#include "http/kept_connections.h"
#include "http/loopback_server.h"
#include "http/request.h"

namespace streamer {
namespace {

const std::string kData(100'000, 'x');

ExchangeRequest request_to(const LoopbackServer& server) {
  start_libcurl();
  ExchangeRequest request;
  request.target.url = server.url();
  request.connect_timeout_s = request.head_timeout_s = 10;
  return request;
}

bool never() { return false; }

std::string body_of(Exchange& exchange, std::size_t piece_bytes) {
  std::string body;
  std::string piece(piece_bytes, '\0');
  while (!exchange.has_ended()) {
    const Exchange::Piece read = exchange.read(piece.data(), piece.size(), 10, never);
    REQUIRE_FALSE(read.error);
    body.append(piece, 0, read.count);
  }
  return body;
}

TEST_CASE("a response has its status, headers and body, and its connection is used again") {
  const LoopbackServer server(kData);
  for (const std::size_t piece_bytes : {kData.size(), kData.size() + 1, std::size_t{1000}}) {
    Exchange exchange(request_to(server));
    REQUIRE_FALSE(exchange.receive_head(never));
    CHECK(exchange.status() == 200);
    CHECK(body_of(exchange, piece_bytes) == kData);
    const auto& headers = exchange.headers();
    CHECK(std::count(headers.begin(), headers.end(), "ETag: \"v1\"") == 1);
  }
  CHECK(server.connections() == 1);
  KeptConnections::of_process().release();
}

TEST_CASE("the response to a HEAD has no body, whatever length it announces") {
  const LoopbackServer server(kData);
  ExchangeRequest request = request_to(server);
  request.method = "HEAD";
  Exchange exchange(std::move(request));
  REQUIRE_FALSE(exchange.receive_head(never));
  CHECK(exchange.has_ended());
  const auto& headers = exchange.headers();
  CHECK(std::count(headers.begin(), headers.end(), "Content-Length: 100000") == 1);
}

TEST_CASE("the connection of a response that is not read to its end is not kept") {
  KeptConnections::of_process().release();
  const LoopbackServer server(kData);
  for (int i = 0; i < 2; ++i) {
    Exchange exchange(request_to(server));
    REQUIRE_FALSE(exchange.receive_head(never));
    std::string piece(1000, '\0');
    CHECK(exchange.read(piece.data(), piece.size(), 10, never).count == piece.size());
    CHECK(piece == kData.substr(0, 1000));
    exchange.close();
  }
  CHECK(server.connections() == 2);
  CHECK(KeptConnections::of_process().release() == 0);
}

TEST_CASE("an error status is a response, and a closed connection is an error") {
  const LoopbackServer server(kData, [](int number) {
    return number == 0 ? LoopbackFault::kUnavailable : LoopbackFault::kCutAtOnce;
  });
  Exchange refused(request_to(server));
  REQUIRE_FALSE(refused.receive_head(never));
  CHECK(refused.status() == 503);
  KeptConnections::of_process().release();
  Exchange closed(request_to(server));
  const auto error = closed.receive_head(never);
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kConnect);
}

TEST_CASE("a body that is cut has the bytes before the cut, and an error") {
  const LoopbackServer server(kData, [](int) { return LoopbackFault::kCut; });
  ExchangeRequest request = request_to(server);
  request.target.headers = {"Range: bytes=0-99999"};
  Exchange exchange(std::move(request));
  REQUIRE_FALSE(exchange.receive_head(never));
  std::string body(kData.size(), '\0');
  const Exchange::Piece read = exchange.read(body.data(), body.size(), 10, never);
  REQUIRE(read.error);
  CHECK(read.error->code == ErrorCode::kConnect);
  CHECK(read.count > 0);
  CHECK(read.count < kData.size());
}

TEST_CASE("a server that accepts no connection, or never answers, ends the wait in time") {
  start_libcurl();
  ExchangeRequest request;
  request.target.url = "http://127.0.0.1:1/object";
  request.connect_timeout_s = request.head_timeout_s = 10;
  const auto refused = Exchange(request).receive_head(never);
  REQUIRE(refused);
  CHECK(refused->code == ErrorCode::kConnect);
  CHECK(refused->os_error == ECONNREFUSED);

  const LoopbackServer server(kData, [](int) { return LoopbackFault::kSilent; });
  request.target.url = server.url();
  request.head_timeout_s = 0.2;
  const auto late = Exchange(request).receive_head(never);
  REQUIRE(late);
  CHECK(late->code == ErrorCode::kTimeout);
  request.head_timeout_s = 60;
  const TimePoint began = Clock::now();
  CHECK(Exchange(request).receive_head([] { return true; }));
  CHECK(seconds_between(began, Clock::now()) < 30);
}

}  // namespace
}  // namespace streamer
