// The state of servers for requests that Python sends, for core/outages/outage_waits.py only.
#include "net/lookup.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "python/foreign_text.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

// Passes a failure to the lookup. The storage's client decides whether the failure is transient;
// the engine does not interpret the exception.
std::optional<double> finish_badly(Lookup& lookup, std::string detail, int http_status,
                                   std::string storage_code, bool is_transient, bool is_of_proxy,
                                   double retry_after_s, int requests, double random) {
  const bool is_status = is_transient && http_status != 0;
  const ErrorCode code = is_status      ? ErrorCode::kHttpStatus
                         : is_transient ? ErrorCode::kConnect
                                        : ErrorCode::kSource;
  ReadError error = error_of(code, std::move(detail));
  error.http_status = is_status ? http_status : 0;
  if (is_status) error.storage_code = std::move(storage_code);
  error.is_of_proxy = is_of_proxy;
  error.retry_after_s = retry_after_s;
  return lookup.finish_badly(std::move(error), requests, random);
}

double began_s(const OutageRecord& outage) {
  return std::chrono::duration<double>(outage.since.time_since_epoch()).count();
}

double age_s(const OutageRecord& outage) { return seconds_between(outage.since, Clock::now()); }

std::string told(const OutageRecord& outage, const std::string& server) {
  std::string story = description_of(server, outage, Clock::now());
  if (outage.first_failure != summary_of(outage.last_failure)) {
    story += "; at first: " + outage.first_failure;
  }
  return story;
}

}  // namespace

void register_lookup(py::module_& module) {
  py::class_<OutageRecord>(module, "OutageRecord", "The current outage of a server.")
      .def_property_readonly("began_s", &began_s,
                             "The start time by the engine's clock, which identifies the outage.")
      .def_property_readonly("age_s", &age_s)
      .def_readonly("failed", &OutageRecord::failed)
      .def_property_readonly(
          "last_failure",
          [](const OutageRecord& outage) { return text_of(summary_of(outage.last_failure)); })
      .def(
          "told",
          [](const OutageRecord& outage, const std::string& server) {
            return text_of(told(outage, server));
          },
          py::arg("server"), "Describe the outage in one sentence.");
  py::class_<Lookup>(module, "Lookup", "A lookup at a server; see net/lookup.h.")
      .def(py::init<const std::string&, const std::string&>(), py::arg("server"), py::arg("proxy"))
      .def("__enter__", &Lookup::begin)
      .def("__exit__", [](Lookup& lookup, const py::args&) { lookup.end(); })
      .def("try_start", &Lookup::try_start)
      .def("finish_well", &Lookup::finish_well)
      .def("finish_badly", &finish_badly, py::arg("detail"), py::kw_only(), py::arg("http_status"),
           py::arg("storage_code"), py::arg("is_transient"), py::arg("is_of_proxy"),
           py::arg("retry_after_s"), py::arg("requests"), py::arg("random"))
      .def("cancel", &Lookup::cancel)
      .def("note_answer", &Lookup::note_answer)
      .def_property_readonly("is_probe", &Lookup::is_probe)
      .def_property_readonly("first_byte_s", &Lookup::first_byte_s)
      .def_property_readonly("has_server_answered", &Lookup::has_server_answered)
      .def_property_readonly("fails_alone", &Lookup::fails_alone)
      .def_property_readonly("outage", &Lookup::outage);
  module.def("asks_for_another_attempt", &asks_for_another_attempt, py::arg("http_status"),
             py::arg("storage_code"), "See net/retry.h.");
}

}  // namespace streamer
