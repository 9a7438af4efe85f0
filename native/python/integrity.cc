// Checksums and the plan of digests, for core/store/digests.py only.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "integrity/crc.h"
#include "integrity/digest_plan.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

Crc crc_of(const std::string& name) {
  const std::optional<Crc> code = crc_of_name(name);
  if (!code) throw std::invalid_argument("no such checksum: " + name);
  return *code;
}

std::uint64_t crc_of_buffer(const std::string& name, const py::buffer& data, std::uint64_t before) {
  const Crc code = crc_of(name);
  const py::buffer_info info = data.request();
  if (info.ndim != 1 || info.itemsize != 1) throw std::invalid_argument("a checksum is of bytes");
  const std::span bytes(static_cast<const std::byte*>(info.ptr),
                        static_cast<std::size_t>(info.size));
  const GilReleased unlocked;
  return compute(code, bytes, before);
}

}  // namespace

void register_integrity(py::module_& module) {
  module.def(
      "crc", &crc_of_buffer, py::arg("name"), py::arg("data"), py::arg("before") = 0,
      "Return the checksum of earlier bytes, with the checksum `before`, followed by `data`.");
  module.def(
      "crc_combine",
      [](const std::string& name, std::uint64_t first, std::uint64_t second,
         std::uint64_t second_bytes) { return combine(crc_of(name), first, second, second_bytes); },
      py::arg("name"), py::arg("first"), py::arg("second"), py::arg("second_bytes"),
      "Return the checksum of two runs of bytes, one after the other.");

  py::class_<DigestPlan>(module, "DigestPlan",
                         "The items that get a digest; see integrity/digest_plan.h.")
      .def(py::init<>())
      .def(
          "add_item",
          [](DigestPlan& plan, std::uint32_t source, const std::optional<std::string>& name,
             std::optional<std::uint64_t> expected) {
            ItemDigest wanted;
            if (name) wanted.code = crc_of(*name);
            wanted.expected = expected;
            wanted.source = source;
            plan.items.push_back(wanted);
          },
          py::arg("source"), py::arg("name"), py::arg("expected"))
      .def(
          "cut",
          [](DigestPlan& plan, std::uint32_t source, std::vector<std::uint64_t> offsets) {
            if (plan.cuts.size() <= source) plan.cuts.resize(source + std::size_t{1});
            plan.cuts[source] = std::move(offsets);
          },
          py::arg("source"), py::arg("offsets"));
}

}  // namespace streamer
