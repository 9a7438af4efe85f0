// Requests about objects, for backends/client/control_requests.py and demanded_pause.py alone.
#include "http/control_request.h"

#include <pybind11/pybind11.h>

#include <functional>
#include <optional>
#include <string>

#include "http/demanded_pause.h"
#include "http/request.h"
#include "python/interruptible.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

// As aiohttp reads one, so that a value which is not ASCII stays that.
py::str header_of(const std::string& line) {
  PyObject* text =
      PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

py::object ask_for_python(const HttpTarget& target, bool is_head, std::size_t most_bytes,
                          bool may_be_cut, double connect_timeout_s, double timeout_s) {
  start_libcurl();
  const ControlRequest request{target,     is_head,           most_bytes,
                               may_be_cut, connect_timeout_s, timeout_s};
  const auto answer = call_interruptibly([&request](const std::function<bool()>& is_interrupted) {
    return ask(request, is_interrupted);
  });
  if (!answer) return py::none();
  py::list headers;
  for (const std::string& line : answer->headers) headers.append(header_of(line));
  return py::make_tuple(answer->status, headers, py::bytes(answer->body));
}

}  // namespace

void register_control_request(py::module_& module) {
  module.def("ask", &ask_for_python, py::arg("target"), py::kw_only(), py::arg("is_head"),
             py::arg("most_bytes"), py::arg("may_be_cut"), py::arg("connect_timeout_s"),
             py::arg("timeout_s"),
             "Status, header lines and body of one answer, or None; see http/control_request.h.");
  module.def(
      "demanded_pause_s",
      [](int status, std::string retry_after, std::string rate_limit, std::string date,
         double unix_now_s) {
        return demanded_pause_s(
            status, {std::move(retry_after), std::move(rate_limit), std::move(date)}, unix_now_s);
      },
      py::arg("status"), py::kw_only(), py::arg("retry_after"), py::arg("rate_limit"),
      py::arg("date"), py::arg("unix_now_s"), "See http/demanded_pause.h.");
}

}  // namespace streamer
