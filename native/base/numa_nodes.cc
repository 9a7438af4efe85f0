#include "base/numa_nodes.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

namespace streamer {
namespace {

std::optional<unsigned> parse_number(std::string_view text) {
  unsigned number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// Returns the only line of the file, without its line end.
std::optional<std::string> read_line(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::optional<std::set<unsigned>> read_number_list(const std::string& path) {
  const std::optional<std::string> text = read_line(path);
  return text ? parse_number_list(*text) : std::nullopt;
}

}  // namespace

std::optional<std::set<unsigned>> parse_number_list(std::string_view text) {
  std::set<unsigned> numbers;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    const std::size_t dash = range.find('-');
    const auto first = parse_number(range.substr(0, dash));
    const auto last = dash == range.npos ? first : parse_number(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kMostProcessors) return std::nullopt;
    for (unsigned number = *first; number <= *last; ++number) numbers.insert(number);
    if (comma + 1 == text.size()) return std::nullopt;  // a comma at the end
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
  }
  return numbers;
}

NumaNodes read_numa_nodes(const std::string& system_root) {
  const std::string folder = system_root + "/sys/devices/system/node/";
  const auto online = read_number_list(folder + "online");
  if (!online) return {};
  NumaNodes nodes;
  for (const unsigned node : *online) {
    auto processors = read_number_list(folder + "node" + std::to_string(node) + "/cpulist");
    if (!processors) return {};
    nodes.emplace(node, std::move(*processors));
  }
  return nodes;
}

// The kernel writes -1 if it does not know the node.
std::optional<unsigned> numa_node_of_pci_device(const std::string& system_root,
                                                const std::string& address) {
  const auto text = read_line(system_root + "/sys/bus/pci/devices/" + address + "/numa_node");
  return text ? parse_number(*text) : std::nullopt;
}

std::optional<unsigned> common_node(const std::vector<std::optional<unsigned>>& nodes) {
  const bool is_common =
      !nodes.empty() && std::count(nodes.begin(), nodes.end(), nodes.front()) == std::ssize(nodes);
  return is_common ? nodes.front() : std::nullopt;
}

}  // namespace streamer
