#include "cuda/cufile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace streamer {

// Each step below returns the reason for its failure, or an empty text.
std::shared_ptr<const CuFile> CuFile::open(const CuFilePaths& paths, bool may_copy,
                                           std::string& reason) {
  const std::shared_ptr<CuFile> opened(new CuFile());
  reason = opened->load(paths);
  if (reason.empty() && !may_copy) reason = opened->forbid_copies(paths);
  if (reason.empty()) reason = opened->start();
  return reason.empty() ? opened : nullptr;
}

std::string CuFile::load(const CuFilePaths& paths) {
  if (access(paths.kernel_module.c_str(), R_OK) != 0) {
    return "the kernel module nvidia-fs is not loaded";
  }
  if (access(paths.modules.c_str(), R_OK) != 0) {
    return paths.modules + " cannot be read, but libcufile needs it to start";
  }
  // Never unloaded: the library may run threads, and the next load may use it again.
  library_ = dlopen(paths.library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library_ == nullptr) return paths.library + " is not installed";
  const auto find = [this]<typename Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    return function != nullptr;
  };
  const bool is_complete = find("cuFileDriverOpen", functions_.driver_open) &&
                           find("cuFileHandleRegister", functions_.add) &&
                           find("cuFileHandleDeregister", functions_.remove) &&
                           find("cuFileRead", functions_.read);
  if (!is_complete) return paths.library + " lacks a function";
  if (!find("cuFileDriverClose_v2", functions_.driver_close)) {
    find("cuFileDriverClose", functions_.driver_close);
  }
  find("cuFileSetParameterBool", functions_.set_switch);
  return {};
}

// The setting holds until the library is closed.
std::string CuFile::forbid_copies(const CuFilePaths& paths) const {
  if (access(paths.device.c_str(), R_OK | W_OK) != 0) {
    return paths.device + " cannot be used: " + std::strerror(errno);
  }
  if (functions_.set_switch == nullptr) return paths.library + " is too old to forbid copies";
  if (const CuFileStatus status = functions_.set_switch(kCuFileAllowCompatMode, false);
      status.code != 0) {
    return "libcufile cannot forbid copies: its code is " + std::to_string(status.code);
  }
  return {};
}

std::string CuFile::start() {
  if (const CuFileStatus status = functions_.driver_open(); status.code != 0) {
    return "libcufile cannot start: its code is " + std::to_string(status.code);
  }
  is_started_ = true;
  return {};
}

CuFile::~CuFile() {
  if (is_started_ && functions_.driver_close != nullptr) functions_.driver_close();
  if (library_ != nullptr) dlclose(library_);
}

std::shared_ptr<void> CuFile::add(int descriptor, int& code) const {
  code = 0;
  // The file is not open for direct reads.
  if ((fcntl(descriptor, F_GETFL) & O_DIRECT) == 0) return nullptr;
  CuFileDescription description;
  description.handle.descriptor = descriptor;
  void* file = nullptr;
  code = functions_.add(&file, &description).code;
  if (code != 0) return nullptr;
  return {file, [library = shared_from_this()](void* added) { library->functions_.remove(added); }};
}

}  // namespace streamer
