// The engine's way to mask secrets, for what Python shows.
#include "http/secrets.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

std::string masked(const std::string& text, const std::vector<std::string>& secrets,
                   const std::vector<std::string>& urls) {
  Secrets all;
  for (const std::string& secret : secrets) all.add(secret);
  for (const std::string& url : urls) all.add_of_url(url);
  return all.masked(text);
}

}  // namespace

void register_secrets(py::module_& module) {
  module.def("masked", &masked, py::arg("text"), py::arg("secrets"), py::arg("urls"),
             "The text with *** for all secrets, and for those of the URLs, that it repeats.");
}

}  // namespace streamer
