// PythonBlock, for core/engine/python_readers.py only.
#include "session/python_block.h"

#include <pybind11/pybind11.h>

#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

py::buffer_info buffer_of(PythonBlock& block) {
  const auto size = block.data() == nullptr ? 0 : static_cast<py::ssize_t>(block.block().size());
  return {reinterpret_cast<std::uint8_t*>(block.data()), size};
}

}  // namespace

void register_python_block(py::module_& module) {
  using released = py::call_guard<GilReleased>;
  py::class_<PythonBlock>(module, "PythonBlock", py::buffer_protocol(),
                          "A contiguous range of one object that a Python thread fills.")
      .def_buffer(&buffer_of)
      .def_property_readonly("source",
                             [](const PythonBlock& block) { return block.block().source; })
      .def_property_readonly("begin", [](const PythonBlock& block) { return block.block().begin; })
      .def_property_readonly("wanted_bytes",
                             [](const PythonBlock& block) { return block.block().wanted_bytes(); })
      .def_property_readonly("is_reread",
                             [](const PythonBlock& block) { return block.block().is_reread; })
      .def_property_readonly("end", [](const PythonBlock& block) { return block.block().end; })
      .def("make_buffer", &PythonBlock::make_buffer, released())
      .def(
          "copy_in",
          [](PythonBlock& block, std::uint64_t begin, std::uintptr_t address, std::size_t bytes) {
            block.copy_in(begin, {reinterpret_cast<const std::byte*>(address), bytes});
          },
          py::arg("begin"), py::arg("address"), py::arg("size_bytes"), released())
      .def("finish", &PythonBlock::finish, released())
      .def("try_again", &PythonBlock::try_again, py::arg("detail"), py::arg("http_status"),
           released())
      .def("fail", &PythonBlock::fail, py::arg("detail"), py::arg("is_kept"), released());
}

}  // namespace streamer
