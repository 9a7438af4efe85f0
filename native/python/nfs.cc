// Looks up files of an NFS server, for backends/nfs/store.py only.
#include "python/gil.h"
#include "python/registers.h"

#ifdef STREAMER_HAS_NFS

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <variant>

#include "base/broken_pipe.h"
#include "nfs/client.h"
#include "python/interruptible.h"

#endif

namespace py = pybind11;

namespace streamer {

#ifdef STREAMER_HAS_NFS

namespace {

std::unique_ptr<NfsClient> make_client(const std::string& url, double connect_timeout_s,
                                       double stall_timeout_s) {
  return std::make_unique<NfsClient>(parse_nfs_url(url),
                                     NfsTimeouts{connect_timeout_s, stall_timeout_s});
}

// libnfs writes to its socket on the caller's thread, and some versions do so without MSG_NOSIGNAL.
template <typename Call>
auto ask(Call call) {
  const BrokenPipesIgnored ignored;
  return call_interruptibly(call);
}

}  // namespace

void register_nfs(py::module_& module) {
  module.attr("has_nfs") = true;
  py::class_<NfsAttributes>(module, "NfsAttributes",
                            "The attributes of a file that an NFS server reports.")
      .def_readonly("size_bytes", &NfsAttributes::size)
      .def_property_readonly("is_file", &NfsAttributes::is_file)
      .def_property_readonly("is_folder", &NfsAttributes::is_folder)
      .def_property_readonly("is_link", &NfsAttributes::is_link)
      .def_property_readonly("version", &NfsAttributes::version);
  py::class_<NfsEntry>(module, "NfsEntry", "One name in a folder of an NFS server.")
      .def_property_readonly(
          "name",
          [](const NfsEntry& entry) {
            // Like os.fsdecode(), because a name may not be UTF-8.
            return py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefaultAndSize(
                entry.name.data(), static_cast<Py_ssize_t>(entry.name.size())));
          })
      .def_readonly("attributes", &NfsEntry::attributes);
  py::class_<NfsClient>(module, "NfsClient", "See nfs/client.h. A failure is returned, not raised.")
      .def(py::init(&make_client), py::arg("url"), py::kw_only(), py::arg("connect_timeout_s"),
           py::arg("stall_timeout_s"))
      .def(
          "stat",
          [](NfsClient& client, const py::bytes& path) {
            const std::string name = path;
            return ask(
                [&](const auto& is_interrupted) { return client.stat(name, is_interrupted); });
          },
          py::arg("path"))
      .def(
          "list",
          [](NfsClient& client, const py::bytes& path) {
            const std::string name = path;
            return ask(
                [&](const auto& is_interrupted) { return client.list(name, is_interrupted); });
          },
          py::arg("path"))
      .def("close", &NfsClient::close, py::call_guard<GilReleased>());
}

#else

void register_nfs(py::module_& module) { module.attr("has_nfs") = false; }

#endif

}  // namespace streamer
