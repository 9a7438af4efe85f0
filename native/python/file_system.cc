// The type of a path's file system, for backends/posix/store.py only: Python's os module has no
// f_type.
#include <pybind11/stl.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>

#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {

void register_file_system(py::module_& module) {
  module.def(
      "file_system_type",
      [](const py::bytes& path) -> std::optional<std::uint32_t> {
        const std::string name = path;
        const GilReleased unlocked;  // statfs() may wait for a dead file server
        struct statfs status {};
        if (statfs(name.c_str(), &status) != 0) return std::nullopt;
        return static_cast<std::uint32_t>(status.f_type);
      },
      py::arg("path"), "Return f_type of statfs(2), or None if the call fails.");
}

}  // namespace streamer
