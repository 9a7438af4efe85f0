// Turns an error of an NFS server or of libnfs into a ReadError. Pure.
//
// libnfs returns a negative errno and a sentence. For some calls, the errno only means "failed".
// The sentence may contain the protocol's own name of the error (NFS3ERR_STALE, NFS4ERR_ACCESS),
// which has priority. The sentence may contain a path, so no message shows it.
#pragma once

#include <string>

#include "base/read_error.h"

namespace streamer {

// `action` names the failed action, such as "read the file". `result` is negative.
ReadError nfs_error(const std::string& action, int result, const std::string& sentence);

// Whether a retry with a new connection and a reopened file may help. This is the case after a
// stale handle, a lease that expired without calls, or an I/O error of the server.
bool is_worth_reopening(const ReadError& error);

}  // namespace streamer
