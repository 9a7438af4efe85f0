#include "net/name_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include "net/endpoint.h"

namespace streamer {

ErrorCode error_of_lookup(int code) {
  switch (code) {
    case EAI_NONAME:
#ifdef EAI_NODATA  // glibc: the name exists, but has no address
    case EAI_NODATA:
#endif
      return ErrorCode::kUnknownHost;
    default:  // EAI_AGAIN, EAI_FAIL, EAI_SYSTEM, ...; or the name has an address now
      return ErrorCode::kResolve;
  }
}

std::string host_of(std::string_view url) {
  std::string host = endpoint_key(url);
  host.erase(0, host.find("://") == std::string::npos ? 0 : host.find("://") + 3);
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

ErrorCode look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* answer = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &answer);
  if (code == 0) freeaddrinfo(answer);
  return error_of_lookup(code);
}

}  // namespace streamer
