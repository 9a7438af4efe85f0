// Calls that Python's os module lacks: the type of the file system of a path, and writes past the
// page cache. For backends/posix only.
#include <pybind11/stl.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "io/direct_write.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

void raise_os_error(int number) {
  if (number == 0) return;
  errno = number;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

void write_bytes(const py::bytes& path, const py::buffer& part, std::uint64_t offset,
                 bool is_direct) {
  const std::string name = path;
  const py::buffer_info info = part.request();
  if (info.ndim != 1 || PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    throw std::invalid_argument("a part must be a contiguous buffer of bytes");
  }
  const std::span bytes(static_cast<const std::byte*>(info.ptr),
                        static_cast<std::size_t>(info.size * info.itemsize));
  raise_os_error([&] {
    const GilReleased unlocked;
    return write_part(name, bytes, offset, is_direct);
  }());
}

}  // namespace

void register_file_system(py::module_& module) {
  module.def(
      "file_system_type",
      [](const py::bytes& path) -> std::optional<std::uint32_t> {
        const std::string name = path;
        const GilReleased unlocked;  // statfs() may wait for a file server that does not answer
        struct statfs status {};
        if (statfs(name.c_str(), &status) != 0) return std::nullopt;
        return static_cast<std::uint32_t>(status.f_type);
      },
      py::arg("path"), "Return f_type of statfs(2), or None if the call fails.");
  module.def("write_part", &write_bytes, py::arg("path"), py::arg("part"), py::arg("offset"),
             py::kw_only(), py::arg("is_direct"), "See io/direct_write.h; raises OSError.");
  module.def(
      "reserve_room",
      [](const py::bytes& path, std::uint64_t size_bytes) {
        const std::string name = path;
        raise_os_error([&] {
          const GilReleased unlocked;
          return reserve_room(name, size_bytes);
        }());
      },
      py::arg("path"), py::arg("size_bytes"), "See io/direct_write.h; raises OSError.");
}

}  // namespace streamer
