// Functions for the tests of this repository: they replace NVIDIA's libraries, and reset the state
// of servers. A wheel does not contain them.
#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "cuda/runtime.h"
#include "net/endpoint.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {

void register_test_seams(py::module_& module) {
  module.def("forget_servers_for_tests", &Endpoint::forget_all_for_tests,
             "Forget the state of all servers.");
  module.def(
      "cuda_use_library_for_tests",
      [](std::string path) { CudaRuntime::instance().use_library_for_tests(std::move(path)); },
      py::arg("path"),
      "Use another library as libcuda.so.1 from now on; \"\" restores the real one.");
  module.def(
      "cuda_use_cufile_for_tests",
      [](std::string library, std::string kernel_module, std::string device, std::string modules) {
        CudaRuntime::instance().use_cufile_for_tests(
            {std::move(library), std::move(kernel_module), std::move(device), std::move(modules)});
      },
      py::arg("library") = CuFilePaths().library,
      py::arg("kernel_module") = CuFilePaths().kernel_module,
      py::arg("device") = CuFilePaths().device, py::arg("modules") = CuFilePaths().modules,
      "Replace libcufile in the same way; without arguments, restore the real one.");
}

}  // namespace streamer
