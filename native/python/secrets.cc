// Makes the engine's masking of secrets available to Python.
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
             "Return the text with *** in place of all secrets, including those in the URLs.");
}

}  // namespace streamer
