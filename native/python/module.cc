// The Python interface of the engine, which only passes values. No thread of the engine touches a
// Python object, and every call that may wait releases the GIL.
#include "python/registers.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The C++ engine of streamer. Private: use streamer.load and its siblings.";
  streamer::register_cache(module);
  streamer::register_cuda(module);
  streamer::register_dlpack(module);
  streamer::register_file_system(module);
  streamer::register_header_entries(module);
  streamer::register_integrity(module);
  streamer::register_lookup(module);
  streamer::register_memory(module);
  streamer::register_page_advice(module);
  streamer::register_nfs(module);
  streamer::register_python_block(module);
  streamer::register_secrets(module);
  streamer::register_session_options(module);
  streamer::register_session_values(module);
  streamer::register_exchange(module);
  streamer::register_session(module);
#ifdef STREAMER_TEST_SEAMS
  streamer::register_test_seams(module);
#endif
}
