// The memory of one tensor, as an object with the buffer protocol. A tensor that is made from the
// object keeps it alive.
#include "io/arena.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {

void register_memory(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol(),
                     "Writable bytes that belong to one tensor; freed with the last reference.")
      .def_buffer([](Memory& memory) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.data()),
                               static_cast<py::ssize_t>(memory.size()));
      })
      .def("__len__", &Memory::size)
      .def_property_readonly("address", [](const Memory& memory) {
        return reinterpret_cast<std::uintptr_t>(memory.data());
      });

  module.def(
      "allocate",
      [](std::size_t size_bytes) {
        const GilReleased unlocked;  // the system may take long to map the memory
        Memory memory = Arena::instance().allocate(size_bytes, 0);
        memory.hand_over();
        return memory;
      },
      py::arg("size_bytes"),
      "Return memory for a tensor that Python fills; empty for 0 bytes. May raise MemoryError.");

  module.def(
      "arena_stats",
      [] {
        const ArenaStats stats = Arena::instance().stats();
        py::dict result;
        result["held_bytes"] = stats.held_bytes;
        result["cached_bytes"] = stats.cached_bytes;
        result["reused"] = stats.reused;
        return result;
      },
      "Return the host memory that loads hold, the memory kept for reuse, and how often it was "
      "reused.");
}

}  // namespace streamer
