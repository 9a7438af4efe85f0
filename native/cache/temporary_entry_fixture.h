// A temporary folder for one cached object, which is removed at the end of its test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>

namespace streamer {

class TemporaryEntry {
 public:
  TemporaryEntry() { (void)!mkdtemp(path_.data()); }
  ~TemporaryEntry() { std::filesystem::remove_all(path_); }
  TemporaryEntry(const TemporaryEntry&) = delete;
  TemporaryEntry& operator=(const TemporaryEntry&) = delete;

  const std::string& path() const { return path_; }
  std::string data() const { return path_ + "/data"; }
  std::string journal() const { return path_ + "/journal"; }

  void flip_byte(std::uint64_t position) const {
    std::fstream file(data(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<long>(position));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<long>(position));
    file.put(byte);
  }

 private:
  std::string path_ = "/tmp/streamer-cache-XXXXXX";
};

}  // namespace streamer
