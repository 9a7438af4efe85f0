// A fake root of the file system for tests that need a machine of several NUMA nodes: a temporary
// folder with the files of /sys that describe nodes and devices.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace streamer {

class FakeSystem {
 public:
  FakeSystem() { REQUIRE(mkdtemp(root_.data()) != nullptr); }
  ~FakeSystem() { std::filesystem::remove_all(root_); }
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  const std::string& root() const { return root_; }

  // The text of /sys/devices/system/node/online.
  void set_online(const std::string& text) { write("devices/system/node/online", text); }
  void set_processors(unsigned node, const std::string& text) {
    write("devices/system/node/node" + std::to_string(node) + "/cpulist", text);
  }
  void set_node_of_device(const std::string& address, const std::string& text) {
    write("bus/pci/devices/" + address + "/numa_node", text);
  }

 private:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(root_) / "sys" / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  std::string root_ = "/tmp/streamer-system-XXXXXX";
};

}  // namespace streamer
