#include "io/other_readers.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/forked_child_fixture.h"
#include "base/temporary_file_fixture.h"

namespace streamer {
namespace {

int opened(const TemporaryFile& file) { return open(file.path().c_str(), O_RDONLY | O_CLOEXEC); }

TEST_CASE("a reader detects other readers of its file, in any process, until they close it") {
  const TemporaryFile file("data");
  const int first = opened(file);
  mark_as_read(first);
  CHECK_FALSE(has_other_readers(first));
  const int second = opened(file);
  CHECK_FALSE(has_other_readers(first));  // the second one did not mark the file
  mark_as_read(second);
  CHECK(has_other_readers(first));
  CHECK(has_other_readers(second));
  close(second);
  CHECK_FALSE(has_other_readers(first));
  CHECK(exit_status_of_child([&file] {
          const int in_child = opened(file);
          return has_other_readers(in_child) ? 7 : 0;
        }) == 7);
  close(first);
}

TEST_CASE("readers of one file are not reported for another file") {
  const TemporaryFile file("data"), other("data");
  const int first = opened(file), second = opened(other);
  mark_as_read(first);
  mark_as_read(second);
  CHECK_FALSE(has_other_readers(first));
  close(first);
  close(second);
}

}  // namespace
}  // namespace streamer
