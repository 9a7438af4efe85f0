// What an NFS server or libnfs said, as a ReadError. Pure.
//
// libnfs gives a negative errno, which for some calls is only "failed", and a sentence that holds
// the protocol's own word (NFS3ERR_STALE, NFS4ERR_ACCESS). The word counts where there is one. The
// sentence itself may hold a path and is not shown.
#pragma once

#include <string>

#include "base/read_error.h"

namespace streamer {

// `action` is what was tried: "read the file". `result` is negative.
ReadError nfs_error(const std::string& action, int result, const std::string& sentence);

// Failures that a new connection and a newly opened file may cure, once: a stale handle, a lease
// that ran out while nothing was asked, an I/O error of the server.
bool is_worth_reopening(const ReadError& error);

}  // namespace streamer
