#include "python/python_block.h"

#include <utility>

#include "pipeline/segment_cursor.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {

PythonBlock::PythonBlock(std::shared_ptr<Session> session, Block block)
    : session_(std::move(session)), block_(std::move(block)) {
  const bool is_direct = block_.segments.size() == 1 && block_.segments[0].target != nullptr;
  if (!is_direct) bounce_.reset(new std::byte[block_.size()]);
  data_ = is_direct ? block_.segments[0].target : bounce_.get();
}

void PythonBlock::finish() {
  if (bounce_) SegmentCursor(block_).copy(bounce_.get(), block_.size());
  session_->finish_python_block(std::move(block_));  // with its slot, which others wait for
}

void PythonBlock::fail(std::string detail) {
  session_->fail_python_block(block_, std::move(detail));
}

void register_python_block(py::module_& module) {
  py::class_<PythonBlock>(module, "PythonBlock", py::buffer_protocol(),
                          "A contiguous range of one object, to be filled by a Python thread.")
      .def_buffer([](PythonBlock& block) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(block.data()),
                               static_cast<py::ssize_t>(block.block().size()));
      })
      .def_property_readonly("source",
                             [](const PythonBlock& block) { return block.block().source; })
      .def_property_readonly("begin", [](const PythonBlock& block) { return block.block().begin; })
      .def_property_readonly("wanted_bytes",
                             [](const PythonBlock& block) { return block.block().wanted_bytes(); })
      .def_property_readonly("is_reread",
                             [](const PythonBlock& block) { return block.block().attempts > 0; })
      .def_property_readonly("end", [](const PythonBlock& block) { return block.block().end; })
      .def("finish", &PythonBlock::finish, py::call_guard<py::gil_scoped_release>())
      .def("fail", &PythonBlock::fail, py::arg("detail"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace streamer
