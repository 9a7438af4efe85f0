// The Python interpreter of this process, looked up at run time. This library is not linked to
// Python. So a process without Python can load it as well, and gets a clear error.
#pragma once

#include <array>
#include <cstdint>

namespace streamer::runai {

// A type of CPython's stable ABI. It is declared here because CPython's headers would bind the
// library to one version of Python.
struct PythonObject;

class Interpreter {
 public:
  // Returns null if no interpreter runs in this process, or its symbols are not global.
  static const Interpreter* find();

  // Calls a function of streamer.compat.runai.entry_point, which takes integers and returns a Code.
  // The caller need not hold the GIL. Returns kNoPackage if the module cannot be imported.
  template <typename... Numbers>
  int call(const char* function, Numbers... numbers) const {
    const std::array<uint64_t, sizeof...(Numbers)> arguments = {static_cast<uint64_t>(numbers)...};
    return call_with(function, arguments.data(), arguments.size());
  }

  // Runs pending signal handlers if this is Python's main thread. Returns whether a handler raised
  // an exception, as on Ctrl-C. The interrupt is then raised again as soon as Python code runs.
  bool is_interrupted() const;

 private:
  int call_with(const char* function, const uint64_t* numbers, std::size_t count) const;
  int result_of(PythonObject* module, const char* function, const uint64_t* numbers,
                std::size_t count) const;
  bool has_all() const;

  int (*is_initialized_)() = nullptr;
  int (*lock_)() = nullptr;
  void (*unlock_)(int) = nullptr;
  PythonObject* (*import_)(const char*) = nullptr;
  PythonObject* (*attribute_)(PythonObject*, const char*) = nullptr;
  PythonObject* (*new_tuple_)(std::ptrdiff_t) = nullptr;
  // Takes ownership of the item.
  int (*set_in_tuple_)(PythonObject*, std::ptrdiff_t, PythonObject*) = nullptr;
  PythonObject* (*new_number_)(unsigned long long) = nullptr;
  PythonObject* (*call_object_)(PythonObject*, PythonObject*) = nullptr;
  long (*as_long_)(PythonObject*) = nullptr;
  PythonObject* (*raised_)() = nullptr;
  void (*clear_error_)() = nullptr;
  void (*release_)(PythonObject*) = nullptr;
  int (*run_handlers_)() = nullptr;
  void (*interrupt_)() = nullptr;
};

}  // namespace streamer::runai
