// The cache of a node, for core/cache only.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>

#include "cache/entry.h"
#include "cache/writer.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

// Opens the cached object. An error of the system becomes an OSError.
std::shared_ptr<CacheEntry> open_entry(const std::string& folder, std::uint64_t object_bytes) {
  try {
    return std::make_shared<CacheEntry>(folder, object_bytes);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, folder.c_str());
    throw py::error_already_set();
  }
}

// Forgets the range now, and once more after pending writes, which may record it again.
void forget(const std::shared_ptr<CacheEntry>& entry, std::uint64_t begin, std::uint64_t end) {
  entry->forget(begin, end);
  CacheWriter::of_process().forget(entry, begin, end);
}

}  // namespace

void register_cache(py::module_& module) {
  using released = py::call_guard<GilReleased>;
  py::class_<CacheEntry, std::shared_ptr<CacheEntry>>(module, "CacheEntry",
                                                      "One cached object; see cache/entry.h.")
      .def(py::init(&open_entry), py::arg("folder"), py::arg("object_bytes"))
      .def("refresh", &CacheEntry::refresh, released())
      .def("checksum", &CacheEntry::checksum, py::arg("begin"), py::arg("end"), released())
      .def("held_bytes", &CacheEntry::held_bytes, released())
      .def("check", &CacheEntry::check, released())
      .def("forget", &forget, py::arg("begin"), py::arg("end"), released())
      .def_property_readonly("is_writable", &CacheEntry::is_writable)
      .def_property_readonly("failure", &CacheEntry::failure)
      .def_property_readonly("written_bytes", &CacheEntry::written_bytes)
      .def_property_readonly("skipped_bytes", &CacheEntry::skipped_bytes);

  module.def(
      "finish_cache_writes",
      [](double timeout_s) { return CacheWriter::of_process().wait_until_idle(timeout_s); },
      py::arg("timeout_s"), released(),
      "Wait until everything is written to caches; False if it takes longer.");
}

}  // namespace streamer
