#include "runai/interpreter.h"

#include <dlfcn.h>

#include <cstddef>

#include "runai/codes.h"

namespace streamer::runai {
namespace {

constexpr const char* kModule = "streamer.compat.runai.entry_point";

template <typename Function>
void look_up(const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

const Interpreter* Interpreter::find() {
  Interpreter found;
  look_up("Py_IsInitialized", found.is_initialized_);
  if (found.is_initialized_ == nullptr || found.is_initialized_() == 0) return nullptr;
  static const Interpreter all = [&found] {
    look_up("PyGILState_Ensure", found.lock_);
    look_up("PyGILState_Release", found.unlock_);
    look_up("PyImport_ImportModule", found.import_);
    look_up("PyObject_GetAttrString", found.attribute_);
    look_up("PyTuple_New", found.new_tuple_);
    look_up("PyTuple_SetItem", found.set_in_tuple_);
    look_up("PyLong_FromUnsignedLongLong", found.new_number_);
    look_up("PyObject_CallObject", found.call_object_);
    look_up("PyLong_AsLong", found.as_long_);
    look_up("PyErr_Occurred", found.raised_);
    look_up("PyErr_Clear", found.clear_error_);
    look_up("Py_DecRef", found.release_);
    look_up("PyErr_CheckSignals", found.run_handlers_);
    look_up("PyErr_SetInterrupt", found.interrupt_);
    return found;
  }();
  return all.has_all() ? &all : nullptr;
}

bool Interpreter::has_all() const {
  return lock_ && unlock_ && import_ && attribute_ && new_tuple_ && set_in_tuple_ && new_number_ &&
         call_object_ && as_long_ && raised_ && clear_error_ && release_ && run_handlers_ &&
         interrupt_;
}

bool Interpreter::is_interrupted() const {
  const int state = lock_();
  const bool has_raised = run_handlers_() != 0;
  if (has_raised) {
    clear_error_();
    interrupt_();
  }
  unlock_(state);
  return has_raised;
}

int Interpreter::call_with(const char* function, const uint64_t* numbers, std::size_t count) const {
  const int state = lock_();
  int code = kNoPackage;
  if (PythonObject* const module = import_(kModule)) {
    code = result_of(module, function, numbers, count);
    release_(module);
  }
  clear_error_();
  unlock_(state);
  return code;
}

int Interpreter::result_of(PythonObject* module, const char* function, const uint64_t* numbers,
                           std::size_t count) const {
  PythonObject* const callable = attribute_(module, function);
  PythonObject* const arguments = new_tuple_(static_cast<std::ptrdiff_t>(count));
  PythonObject* result = nullptr;
  if (callable != nullptr && arguments != nullptr) {
    for (std::size_t index = 0; index < count; ++index) {
      set_in_tuple_(arguments, static_cast<std::ptrdiff_t>(index), new_number_(numbers[index]));
    }
    if (raised_() == nullptr) result = call_object_(callable, arguments);
  }
  const long code = result != nullptr ? as_long_(result) : long{kUnknown};
  for (PythonObject* const each : {callable, arguments, result}) release_(each);
  if (raised_() == nullptr) return static_cast<int>(code);
  interrupt_();  // raises KeyboardInterrupt, the only exception that the module lets through
  return kUnknown;
}

}  // namespace streamer::runai
