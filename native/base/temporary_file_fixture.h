// A temporary file of random bytes, which is removed at the end of its test.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace streamer {

inline std::string random_data(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string data(size, '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  return data;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& data) {
    const int descriptor = mkstemp(path_.data());
    std::FILE* file = fdopen(descriptor, "wb");
    std::fwrite(data.data(), 1, data.size(), file);
    std::fclose(file);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/streamer-session-XXXXXX";
};

}  // namespace streamer
