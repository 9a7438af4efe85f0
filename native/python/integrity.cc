// Checksums and the plan of digests, for core/store/digests.py only.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "integrity/crc.h"
#include "integrity/digest_plan.h"
#include "integrity/piece_cipher.h"
#include "integrity/seal_plan.h"
#include "io/arena.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

Crc crc_of(const std::string& name) {
  const std::optional<Crc> code = crc_of_name(name);
  if (!code) throw std::invalid_argument("no such checksum: " + name);
  return *code;
}

std::uint64_t crc_of_buffer(const std::string& name, const py::buffer& data, std::uint64_t before) {
  const Crc code = crc_of(name);
  const py::buffer_info info = data.request();
  if (info.ndim != 1 || info.itemsize != 1)
    throw std::invalid_argument("a checksum needs a buffer of bytes");
  const std::span bytes(static_cast<const std::byte*>(info.ptr),
                        static_cast<std::size_t>(info.size));
  const GilReleased unlocked;
  return compute(code, bytes, before);
}

std::span<const std::byte> bytes_of(const py::buffer_info& info) {
  if (info.ndim != 1 || info.itemsize != 1)
    throw std::invalid_argument("a buffer of bytes is needed");
  return {static_cast<const std::byte*>(info.ptr), static_cast<std::size_t>(info.size)};
}

std::vector<std::byte> copied(const py::buffer& data) {
  const py::buffer_info info = data.request();
  const std::span bytes = bytes_of(info);
  return {bytes.begin(), bytes.end()};
}

// Returns the encrypted bytes and their tags. The bytes are in memory of the arena, which has huge
// pages and is reused.
py::tuple encrypt(const PieceCipher& cipher, const py::buffer& data, std::uint64_t position,
                  std::uint64_t first) {
  const py::buffer_info info = data.request();
  const std::span plain = bytes_of(info);
  std::vector<std::byte> tags(cipher.pieces_in(position, position + plain.size()) * kTagBytes);
  Memory to;
  {
    const GilReleased unlocked;
    to = Arena::instance().allocate(plain.size(), 0);
    to.hand_over();
    cipher.encrypt(position, first, plain, to.data(), tags);
  }
  return py::make_tuple(std::move(to),
                        py::bytes(reinterpret_cast<const char*>(tags.data()), tags.size()));
}

// Returns the decrypted bytes; None if a tag mismatches.
py::object decrypt(const PieceCipher& cipher, const py::buffer& data, std::uint64_t position,
                   std::uint64_t first, const py::buffer& tags) {
  std::vector<std::byte> bytes = copied(data);
  const py::buffer_info info = tags.request();
  const std::span tag_bytes = bytes_of(info);
  if (cipher.decrypt(position, first, bytes, tag_bytes) != PieceCipher::kAllRight)
    return py::none();
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void add_item(DigestPlan& plan, std::uint32_t source, const std::optional<std::string>& name,
              std::optional<std::uint64_t> expected, const std::optional<std::string>& sha256) {
  ItemDigest wanted;
  if (name) wanted.code = crc_of(*name);
  wanted.expected = expected;
  wanted.source = source;
  wanted.is_hashed = sha256.has_value();
  if (sha256 && !sha256->empty()) {
    const std::span bytes = std::as_bytes(std::span(*sha256));
    if (bytes.size() != sizeof(Hash)) throw std::invalid_argument("no SHA-256");
    std::copy(bytes.begin(), bytes.end(), wanted.expected_hash.emplace().begin());
  }
  plan.items.push_back(wanted);
}

void register_encryption(py::module_& module) {
  using Cipher = std::shared_ptr<PieceCipher>;
  py::class_<PieceCipher, Cipher>(
      module, "PieceCipher", "AES-256-GCM of the pieces of a file; see integrity/piece_cipher.h.")
      .def(py::init([](const py::buffer& key, std::uint64_t piece_bytes) {
             const py::buffer_info info = key.request();
             return std::make_shared<PieceCipher>(bytes_of(info), piece_bytes);
           }),
           py::arg("key"), py::arg("piece_bytes"))
      .def("pieces_in", &PieceCipher::pieces_in, py::arg("begin"), py::arg("end"))
      .def("encrypt", &encrypt, py::arg("data"), py::arg("position"), py::arg("first"))
      .def("decrypt", &decrypt, py::arg("data"), py::arg("position"), py::arg("first"),
           py::arg("tags"));

  py::class_<SealPlan>(module, "SealPlan",
                       "The items that are encrypted; see integrity/seal_plan.h.")
      .def(py::init<>())
      .def(
          "add_file",
          [](SealPlan& plan, const Cipher& cipher, const py::buffer& tags) {
            plan.files.push_back({cipher, copied(tags)});
          },
          py::arg("cipher"), py::arg("tags"))
      .def(
          "add_item",
          [](SealPlan& plan, std::optional<std::uint32_t> file, std::uint64_t first_piece) {
            plan.items.push_back({file.value_or(SealedItem::kPlain), first_piece});
          },
          py::arg("file"), py::arg("first_piece"));
}

}  // namespace

void register_integrity(py::module_& module) {
  module.def(
      "crc", &crc_of_buffer, py::arg("name"), py::arg("data"), py::arg("before") = 0,
      "Return the checksum of earlier bytes, with the checksum `before`, followed by `data`.");
  module.def(
      "crc_combine",
      [](const std::string& name, std::uint64_t first, std::uint64_t second,
         std::uint64_t second_bytes) { return combine(crc_of(name), first, second, second_bytes); },
      py::arg("name"), py::arg("first"), py::arg("second"), py::arg("second_bytes"),
      "Return the checksum of two sequences of bytes, one after the other.");

  py::class_<DigestPlan>(module, "DigestPlan",
                         "The items that get a digest; see integrity/digest_plan.h.")
      .def(py::init<>())
      .def("add_item", &add_item, py::arg("source"), py::arg("name"), py::arg("expected"),
           py::arg("sha256") = py::none(),
           "Add an item: with a checksum, a SHA-256 of pieces (b\"\" to compute it only), or "
           "neither.")
      .def(
          "cut",
          [](DigestPlan& plan, std::uint32_t source, std::vector<std::uint64_t> offsets) {
            if (plan.cuts.size() <= source) plan.cuts.resize(source + std::size_t{1});
            plan.cuts[source] = std::move(offsets);
          },
          py::arg("source"), py::arg("offsets"));
  register_encryption(module);
}

}  // namespace streamer
