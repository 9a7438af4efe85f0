// One request about objects and its response, for backends/client/exchange.py only.
#include "http/exchange.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "http/demanded_pause.h"
#include "http/request.h"
#include "python/gil.h"
#include "python/interruptible.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

using IsInterrupted = Exchange::IsInterrupted;

// The order of the base classes matters: the exchange ends before its body is released.
struct BorrowedBody {
  py::buffer_info body;
};

class ExchangeWithBody : private BorrowedBody, public Exchange {
 public:
  ExchangeWithBody(ExchangeRequest request, py::buffer_info borrowed)
      : BorrowedBody{std::move(borrowed)}, Exchange(std::move(request)) {}
};

// Decodes a header like aiohttp, so that bytes which are not UTF-8 survive a round trip.
py::str header_of(const std::string& line) {
  PyObject* text =
      PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

py::list headers_of_answer(const ExchangeWithBody& exchange) {
  py::list headers;
  for (const std::string& line : exchange.headers()) headers.append(header_of(line));
  return headers;
}

std::optional<ReadError> receive_head(ExchangeWithBody& exchange) {
  return call_interruptibly([&exchange](const IsInterrupted& is_interrupted) {
    return exchange.receive_head(is_interrupted);
  });
}

py::tuple read_into(ExchangeWithBody& exchange, const py::buffer& buffer, double timeout_s) {
  const py::buffer_info info = buffer.request(true);
  const auto size = static_cast<std::size_t>(info.size * info.itemsize);
  char* const into = static_cast<char*>(info.ptr);
  Exchange::Piece piece = call_interruptibly([&](const IsInterrupted& is_interrupted) {
    return exchange.read(into, size, timeout_s, is_interrupted);
  });
  return py::make_tuple(piece.count, std::move(piece.error));
}

std::unique_ptr<ExchangeWithBody> make_exchange(HttpTarget target, std::string method,
                                                const py::buffer& body, double connect_timeout_s,
                                                double head_timeout_s, bool is_repeated) {
  start_libcurl();
  py::buffer_info info = body.request();
  if (info.ndim != 1 || PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    throw std::invalid_argument("a body must be a contiguous buffer of bytes");
  }
  const std::string_view bytes(static_cast<const char*>(info.ptr),
                               static_cast<std::size_t>(info.size * info.itemsize));
  return std::make_unique<ExchangeWithBody>(
      ExchangeRequest{std::move(target), std::move(method), bytes, connect_timeout_s,
                      head_timeout_s, is_repeated},
      std::move(info));
}

}  // namespace

void register_exchange(py::module_& module) {
  py::class_<ExchangeWithBody>(module, "Exchange",
                               "One request and its response; see http/exchange.h.")
      .def(py::init(&make_exchange), py::arg("target"), py::kw_only(), py::arg("method"),
           py::arg("body"), py::arg("connect_timeout_s"), py::arg("head_timeout_s"),
           py::arg("is_repeated"))
      .def("receive_head", &receive_head,
           "Send the request. Return None when the head has arrived.")
      .def("read_into", &read_into, py::arg("buffer"), py::arg("timeout_s"),
           "Fill a buffer from the body. Return the byte count, and an error or None.")
      .def("close", &Exchange::close, py::call_guard<GilReleased>())
      .def_property_readonly("status", &Exchange::status)
      .def_property_readonly("headers", &headers_of_answer)
      .def_property_readonly("has_ended", &Exchange::has_ended)
      .def_property_readonly("was_connected", &Exchange::was_connected)
      .def_property_readonly("strange_start", [](const ExchangeWithBody& exchange) {
        return py::bytes(exchange.strange_start());
      });
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
