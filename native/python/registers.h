// Each function adds one part to the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace streamer {

void register_cache(pybind11::module_& module);
void register_exchange(pybind11::module_& module);
void register_cuda(pybind11::module_& module);
void register_dlpack(pybind11::module_& module);
void register_file_system(pybind11::module_& module);
void register_header_entries(pybind11::module_& module);
void register_integrity(pybind11::module_& module);
void register_lookup(pybind11::module_& module);
void register_memory(pybind11::module_& module);
void register_page_advice(pybind11::module_& module);
void register_nfs(pybind11::module_& module);
void register_python_block(pybind11::module_& module);
void register_secrets(pybind11::module_& module);
void register_session(pybind11::module_& module);
void register_session_options(pybind11::module_& module);
void register_session_values(pybind11::module_& module);
void register_test_seams(pybind11::module_& module);

}  // namespace streamer
