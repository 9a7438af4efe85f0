#include "runai/codes.h"

namespace streamer::runai {

const char* text_of(int code) {
  switch (code) {
    case kSuccess:
      return "Success";
    case kFinished:
      return "Finished: the streamer has ended, no response follows";
    case kFileAccess:
      return "File access error: the object cannot be read, the log of streamer says why";
    case kEndOfFile:
      return "End of file: the object is shorter than the range";
    case kInvalidParameter:
      return "Invalid parameter: a pointer, a number or an option is wrong";
    case kUnknown:
      return "Unknown error: the log of streamer says more";
    case kNoBackend:
      return "No backend for this URL: the log of streamer names what to install";
    case kWrongAnswer:
      return "The storage returned other bytes than requested: the log of streamer says more";
    case kTimedOut:
      return "Timed out: no response within this time";
    case kOtherCredentials:
      return "This streamer already has other credentials: start a new one for these";
    case kUnsupportedDevice:
      return "Unsupported device: the only supported destination is host memory";
    case kOutOfMemory:
      return "Out of memory: the log of streamer says more";
    case kNoInterpreter:
      return "There is no Python in this process: this library reads through the package streamer";
    case kNoPackage:
      return "The Python of this process cannot import streamer: python -c 'import "
             "streamer.compat.runai.entry_point' says why";
    default:
      return "Unknown code: this library never returns this number";
  }
}

}  // namespace streamer::runai
