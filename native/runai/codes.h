// The codes that Run:ai's C interface returns, and the text of each.
#pragma once

namespace streamer::runai {

// Codes below 100 are Run:ai's own and must not change. Callers of its interface compare the first
// three codes and kTimedOut.
enum Code : int {
  kSuccess = 0,
  kFinished = 1,
  kFileAccess = 2,
  kEndOfFile = 3,
  kInvalidParameter = 7,
  kUnknown = 11,
  kNoBackend = 12,
  kWrongAnswer = 15,
  kTimedOut = 16,
  kOtherCredentials = 18,
  kUnsupportedDevice = 23,
  kOutOfMemory = 26,
  kNoInterpreter = 100,
  kNoPackage = 101,
};

// Returns the text of a code; for an unknown number, a text that says so. Never returns null.
const char* text_of(int code);

}  // namespace streamer::runai
