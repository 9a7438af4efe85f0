// The values that go in and out of a Session: errors, outages, deliveries, and locations of
// objects.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "http/object.h"
#include "net/endpoint.h"
#include "python/foreign_text.h"
#include "python/registers.h"
#include "schedule/scheduler.h"
#include "session/outage_watch.h"

namespace py = pybind11;

namespace streamer {
namespace {

using Headers = std::vector<std::string>;

// Returns a getter for a text member that a server may have written.
template <typename Owner>
auto text_in(std::string Owner::*member) {
  return [member](const Owner& owner) { return text_of(owner.*member); };
}

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAccessDenied:
      return "access_denied";
    case ErrorCode::kCredentials:
      return "credentials";
    case ErrorCode::kCredentialsExpired:
      return "credentials_expired";
    case ErrorCode::kClockSkew:
      return "clock_skew";
    case ErrorCode::kTruncated:
      return "truncated";
    case ErrorCode::kChanged:
      return "changed";
    case ErrorCode::kRangeResponse:
      return "range_response";
    case ErrorCode::kEndlessHeaders:
      return "endless_headers";
    case ErrorCode::kRedirect:
      return "redirect";
    case ErrorCode::kHttpStatus:
      return "http_status";
    case ErrorCode::kConnect:
    case ErrorCode::kResolve:
      return "connect";
    case ErrorCode::kUnknownHost:
      return "unknown_host";
    case ErrorCode::kTls:
      return "tls";
    case ErrorCode::kObjectFailure:
      return "object_failure";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kTampered:
      return "tampered";
    case ErrorCode::kLeavesFolder:
      return "leaves_folder";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kSource:
      return "source";
    case ErrorCode::kChecksum:
      return "checksum";
    case ErrorCode::kDevice:
      return "device";
  }
  return "io";
}

void register_read_error(py::module_& module) {
  py::class_<ReadError>(module, "ReadError",
                        "A failure as a value; core maps it to the error tree.")
      .def_property_readonly("code", [](const ReadError& error) { return name_of(error.code); })
      .def_property_readonly("detail", text_in(&ReadError::detail))
      .def_readonly("source", &ReadError::source)
      .def_readonly("begin", &ReadError::begin)
      .def_readonly("end", &ReadError::end)
      .def_readonly("http_status", &ReadError::http_status)
      .def_readonly("os_error", &ReadError::os_error)
      .def_property_readonly("storage_code", text_in(&ReadError::storage_code))
      .def_property_readonly("request_id", text_in(&ReadError::request_id))
      .def_readonly("is_of_proxy", &ReadError::is_of_proxy)
      .def_property_readonly("proxy", text_in(&ReadError::proxy))
      .def_readonly("item", &ReadError::item)
      .def_readonly("algorithm", &ReadError::algorithm)
      .def_property_readonly("expected", text_in(&ReadError::expected))
      .def_property_readonly("found", text_in(&ReadError::found))
      .def_readonly("attempts", &ReadError::attempts)
      .def_readonly("elapsed_s", &ReadError::elapsed_s);
}

void register_open_outage(py::module_& module) {
  py::class_<OpenOutage>(module, "OpenOutage", "A server in an outage, for which the load waits.")
      .def_property_readonly("server", text_in(&OpenOutage::server))
      .def_readonly("waited_s", &OpenOutage::waited_s)
      .def_readonly("probes", &OpenOutage::probes)
      .def_property_readonly("last_failure", text_in(&OpenOutage::last_failure));
}

void register_delivery(py::module_& module) {
  py::class_<Delivery>(module, "Delivery", "The result of wait().")
      .def_readonly("items", &Delivery::items)
      .def_readonly("to_refresh", &Delivery::to_refresh)
      .def_readonly("to_allocate", &Delivery::to_allocate)
      .def_readonly("error", &Delivery::error)
      .def_readonly("is_finished", &Delivery::is_finished);
}

void register_http_target(py::module_& module) {
  py::class_<HttpTarget>(module, "HttpTarget", "How to reach an object over HTTP.")
      .def(py::init([](std::string url, Headers headers, std::string ca_file, std::string proxy,
                       double expires_at_s, double renew_at_s, bool is_redirect,
                       std::string client_cert, std::string client_key, std::uint64_t offset_bytes,
                       std::uint64_t whole_bytes, bool checks_host) {
             return HttpTarget{std::move(url),        std::move(headers),
                               std::move(ca_file),    std::move(proxy),
                               expires_at_s,          renew_at_s,
                               is_redirect,           std::move(client_cert),
                               std::move(client_key), offset_bytes,
                               whole_bytes,           checks_host};
           }),
           py::kw_only(), py::arg("url"), py::arg("headers"), py::arg("ca_file"), py::arg("proxy"),
           py::arg("expires_at_s"), py::arg("renew_at_s"), py::arg("is_redirect") = false,
           py::arg("client_cert") = "", py::arg("client_key") = "", py::arg("offset_bytes") = 0,
           py::arg("whole_bytes") = 0, py::arg("checks_host") = true);
}

}  // namespace

void register_session_values(py::module_& module) {
  module.attr("HOST") = kHost;
  module.attr("CONSUMERS_HOST") = kConsumersHost;
  register_read_error(module);
  register_open_outage(module);
  register_delivery(module);
  register_http_target(module);
}

}  // namespace streamer
