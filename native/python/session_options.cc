// The options of a Session, each as a property; core/engine/native_session.py sets them by name.
#include "session/session_options.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

using Knobs = py::class_<SessionOptions>;

// Adds a property for one field of one part of the options.
template <typename Part, typename Value>
void add(Knobs& knobs, const char* name, Part SessionOptions::*part, Value Part::*field) {
  knobs.def_property(
      name, [=](const SessionOptions& options) { return options.*part.*field; },
      [=](SessionOptions& options, Value value) { options.*part.*field = value; });
}

void add_block_bytes(Knobs& knobs, const char* name, Lane lane) {
  const auto index = static_cast<std::size_t>(lane);
  knobs.def_property(
      name, [=](const SessionOptions& options) { return options.scheduler.block_bytes.at(index); },
      [=](SessionOptions& options, std::uint64_t value) {
        options.scheduler.block_bytes.at(index) = value;
      });
}

}  // namespace

void register_session_options(py::module_& module) {
  Knobs knobs(module, "SessionOptions", "How one load is read; see session/session_options.h.");
  knobs.def(py::init<>())
      .def_readwrite("file_threads", &SessionOptions::file_threads)
      .def_readwrite("http_reactors", &SessionOptions::http_reactors)
      .def_readwrite("http_in_flight", &SessionOptions::http_in_flight)
      .def_readwrite("http_blocks_follow_server", &SessionOptions::http_blocks_follow_server)
      .def_readwrite("nfs_threads", &SessionOptions::nfs_threads)
      .def_readwrite("pinned_bytes", &SessionOptions::pinned_bytes)
      .def_readwrite("gpudirect", &SessionOptions::gpudirect)
      .def_readwrite("trace_events", &SessionOptions::trace_events)
      .def_readwrite("hedge_percent", &SessionOptions::hedge_percent);
  add_block_bytes(knobs, "file_block_bytes", Lane::kFile);
  add_block_bytes(knobs, "http_block_bytes", Lane::kHttp);
  add_block_bytes(knobs, "python_block_bytes", Lane::kPython);
  add_block_bytes(knobs, "nfs_block_bytes", Lane::kNfs);
  add(knobs, "memory_limit_bytes", &SessionOptions::scheduler,
      &SchedulerOptions::memory_limit_bytes);
  add(knobs, "first_memory_limit_bytes", &SessionOptions::scheduler,
      &SchedulerOptions::first_memory_limit_bytes);
  add(knobs, "max_bytes_per_second", &SessionOptions::scheduler,
      &SchedulerOptions::max_bytes_per_second);
  add(knobs, "in_item_order", &SessionOptions::scheduler, &SchedulerOptions::in_item_order);
  add(knobs, "connect_timeout_s", &SessionOptions::timeouts, &Timeouts::connect_timeout_s);
  add(knobs, "first_byte_timeout_s", &SessionOptions::timeouts, &Timeouts::first_byte_timeout_s);
  add(knobs, "stall_timeout_s", &SessionOptions::timeouts, &Timeouts::stall_timeout_s);
  add(knobs, "stall_bytes_per_s", &SessionOptions::timeouts, &Timeouts::stall_bytes_per_s);
  add(knobs, "max_attempts", &SessionOptions::retry, &RetryOptions::max_attempts);
  add(knobs, "block_deadline_s", &SessionOptions::retry, &RetryOptions::block_deadline_s);
}

}  // namespace streamer
