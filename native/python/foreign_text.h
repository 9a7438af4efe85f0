// Decodes text that a server wrote. The text may not be UTF-8, which must not raise an error.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace streamer {

inline pybind11::str text_of(const std::string& bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

}  // namespace streamer
