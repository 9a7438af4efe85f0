// Makes the engine use a larger page size, a multiple of the real one, until this object is
// destroyed.
#pragma once

#include "base/page_sizes.h"

namespace streamer {

class OtherPages {
 public:
  explicit OtherPages(std::size_t page_bytes) : before_(page_sizes()) {
    replace_page_sizes({page_bytes, huge_page_bytes_for(page_bytes)});
  }
  ~OtherPages() { replace_page_sizes(before_); }
  OtherPages(const OtherPages&) = delete;
  OtherPages& operator=(const OtherPages&) = delete;

 private:
  PageSizes before_;
};

}  // namespace streamer
