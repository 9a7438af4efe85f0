// Kernel calls about pages, for Python: advice to use huge pages for memory of the caller (a
// model's parameters, a mapped file), and whether a page of a file is in memory. The calls change
// no byte, and a refusal of the kernel only costs speed.
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
      "Advise huge pages for memory that will be filled: (address, bytes) of each range.");
  module.def(
      "is_cached", [](int descriptor, off_t offset) { return is_cached(descriptor, offset); },
      py::arg("descriptor"), py::arg("offset"), py::call_guard<GilReleased>(),
      "Return whether this byte of an open file was in the page cache. The check reads it in.");
}

}  // namespace streamer
