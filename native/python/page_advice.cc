// What Python asks the kernel about pages: to give huge ones to memory that is not the engine's (a
// model's parameters, a mapped file), and whether one of a file is in memory. It changes no byte,
// and where the kernel refuses, each page is mapped when it is first used.
#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "io/huge_pages.h"
#include "io/page_cache.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {

void register_page_advice(py::module_& module) {
  module.def(
      "advise_huge_pages",
      [](const std::vector<std::pair<std::uintptr_t, std::size_t>>& ranges) {
        std::vector<MemoryRange> all;
        for (const auto& [address, size_bytes] : ranges) {
          all.push_back({reinterpret_cast<std::byte*>(address), size_bytes});
        }
        advise_huge_pages(std::move(all));
      },
      py::arg("ranges"),
      "Let memory that is going to be filled have huge pages: (address, bytes) of each range.");
  module.def(
      "is_cached", [](int descriptor, off_t offset) { return is_cached(descriptor, offset); },
      py::arg("descriptor"), py::arg("offset"), py::call_guard<GilReleased>(),
      "Whether this byte of an open file was in the page cache; it is afterwards.");
}

}  // namespace streamer
