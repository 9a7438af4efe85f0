#include "nfs/errors.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

namespace streamer {
namespace {

enum class Cure : std::uint8_t { kNone, kReopen };

struct Row {
  std::string_view word;  // the protocol's error name, without NFS3ERR_ or NFS4ERR_
  int os_error;
  ErrorCode code;
  std::string_view meaning;
  Cure cure = Cure::kNone;
};

constexpr std::string_view kStateLost = "the server forgot that the file is open";

// RFC 1813 section 2.6, RFC 7530 section 13.1.
constexpr std::array kRows = {
    Row{"NOENT", ENOENT, ErrorCode::kNotFound, "there is no such file"},
    Row{"NOTDIR", ENOTDIR, ErrorCode::kNotFound, "a part of the path is not a folder"},
    Row{"NAMETOOLONG", ENAMETOOLONG, ErrorCode::kNotFound, "the name is too long for the server"},
    Row{"ACCES", EACCES, ErrorCode::kAccessDenied, "the server refuses access to this user"},
    Row{"ACCESS", EACCES, ErrorCode::kAccessDenied, "the server refuses access to this user"},
    Row{"PERM", EPERM, ErrorCode::kAccessDenied, "the server refuses this user or this port"},
    Row{"WRONGSEC", EPERM, ErrorCode::kAccessDenied,
        "the export requires Kerberos, which is not supported"},
    Row{"STALE", ESTALE, ErrorCode::kChanged, "the file was removed or replaced", Cure::kReopen},
    Row{"FHEXPIRED", ESTALE, ErrorCode::kChanged, "the file handle expired", Cure::kReopen},
    Row{"EXPIRED", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"BAD_STATEID", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"STALE_STATEID", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"OLD_STATEID", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"STALE_CLIENTID", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"ADMIN_REVOKED", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"BAD_SEQID", EIO, ErrorCode::kIo, kStateLost, Cure::kReopen},
    Row{"IO", EIO, ErrorCode::kIo, "the server has an I/O error", Cure::kReopen},
    Row{"SERVERFAULT", EIO, ErrorCode::kIo, "the server failed", Cure::kReopen},
    Row{"RESOURCE", EAGAIN, ErrorCode::kTimeout, "the server is short of resources"},
    Row{"DELAY", EAGAIN, ErrorCode::kTimeout, "the server is busy"},
    Row{"JUKEBOX", EAGAIN, ErrorCode::kTimeout, "the server is busy"},
    Row{"GRACE", EAGAIN, ErrorCode::kTimeout, "the server has just started"},
    Row{"ISDIR", EISDIR, ErrorCode::kIo, "this is a folder, not a file"},
};

// Returns the protocol's error name in the sentence, with its prefix, or an empty text.
std::string_view word_in(std::string_view sentence) {
  for (const std::string_view prefix : {"NFS3ERR_", "NFS4ERR_"}) {
    const std::size_t begin = sentence.find(prefix);
    if (begin == sentence.npos) continue;
    const std::size_t end =
        sentence.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", begin + prefix.size());
    return sentence.substr(begin, end == sentence.npos ? end : end - begin);
  }
  return {};
}

const Row* row_of(std::string_view word, int os_error) {
  const auto matches = [&](const Row& row) {
    return word.empty() ? row.os_error == os_error : row.word == word.substr(8);
  };
  const auto* const row = std::find_if(kRows.begin(), kRows.end(), matches);
  return row == kRows.end() ? nullptr : row;
}

}  // namespace

ReadError nfs_error(const std::string& action, int result, const std::string& sentence) {
  ReadError error;
  error.detail = "cannot " + action + ": ";
  const std::string_view word = word_in(sentence);
  error.storage_code = word;
  if (word.empty() && sentence.find("Insufficient ACCESS") != sentence.npos) result = -EACCES;
  // libnfs returns these codes if no response came, because the call failed below NFS or the
  // connection was closed.
  const bool is_unanswered = word.empty() && (result == -EFAULT || result == -EINTR);
  const Row* const row = is_unanswered ? nullptr : row_of(word, -result);
  if (is_unanswered) {
    error.code = ErrorCode::kConnect;
    error.detail += "the connection to the NFS server was lost";
  } else if (row == nullptr) {
    error.os_error = word.empty() ? -result : 0;
    error.detail += "the NFS server refused";
  } else {
    error.code = row->code;
    error.os_error = row->os_error;
    error.detail += row->meaning;
    if (row->code == ErrorCode::kTimeout)
      error.retry_after_s = 1;  // as long as the first pause of kernel clients
  }
  return error;
}

bool is_worth_reopening(const ReadError& error) {
  const std::string_view word = error.storage_code;
  const Row* const row = row_of(word, error.os_error);
  return row != nullptr && row->cure == Cure::kReopen && row->code == error.code;
}

}  // namespace streamer
