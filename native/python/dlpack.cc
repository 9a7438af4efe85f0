// Memory of tensors as DLPack capsules. A library turns a capsule into a tensor with dtype and
// shape in one call (decision 0019). The structures follow DLPack's documented binary interface
// before version 1.0, which all libraries accept.
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/arena_memory.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

struct DlpackType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DlpackTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device;
  std::int32_t rank;
  DlpackType type;
  std::int64_t* shape;
  std::int64_t* strides;  // null: contiguous
  std::uint64_t byte_offset;
};

struct DlpackManagedTensor {
  DlpackTensor tensor;
  void* owner;
  void (*free)(DlpackManagedTensor*);  // called by the library that took the capsule, on any thread
};

constexpr std::int32_t kCpu = 1;
constexpr const char* kNotYetTaken = "dltensor";  // a library that takes a capsule renames it

struct Owner {
  Memory memory;
  std::vector<std::int64_t> shape;
  DlpackManagedTensor managed{};
};

void free_owner(DlpackManagedTensor* managed) { delete static_cast<Owner*>(managed->owner); }

void free_if_not_taken(PyObject* capsule) {
  void* const managed = PyCapsule_IsValid(capsule, kNotYetTaken) != 0
                            ? PyCapsule_GetPointer(capsule, kNotYetTaken)
                            : nullptr;
  if (managed != nullptr) free_owner(static_cast<DlpackManagedTensor*>(managed));
}

// Whether a tensor of this type and shape has exactly `bytes` bytes.
bool fits(const std::vector<std::int64_t>& shape, DlpackType type, std::size_t bytes) {
  unsigned __int128 left = static_cast<unsigned __int128>(bytes) * 8;
  if (type.bits == 0 || left % type.bits != 0) return false;
  left /= type.bits;
  for (const std::int64_t size : shape) {
    if (size <= 0 || left % static_cast<std::uint64_t>(size) != 0) return false;
    left /= static_cast<std::uint64_t>(size);
  }
  return left == 1;
}

py::object capsule_of(Memory& memory, std::vector<std::int64_t> shape, DlpackType type) {
  if (memory.size() == 0 || !fits(shape, type, memory.size())) {
    throw std::invalid_argument("memory of " + std::to_string(memory.size()) +
                                " bytes does not hold a tensor of this dtype and shape");
  }
  auto owner = std::make_unique<Owner>(Owner{std::move(memory), std::move(shape)});
  owner->managed.tensor = {.data = owner->memory.data(),
                           .device_type = kCpu,
                           .device = 0,
                           .rank = static_cast<std::int32_t>(owner->shape.size()),
                           .type = type,
                           .shape = owner->shape.data(),
                           .strides = nullptr,
                           .byte_offset = 0};
  owner->managed.owner = owner.get();
  owner->managed.free = free_owner;
  PyObject* const capsule = PyCapsule_New(&owner->managed, kNotYetTaken, free_if_not_taken);
  if (capsule == nullptr) throw py::error_already_set();
  (void)owner.release();
  return py::reinterpret_steal<py::object>(capsule);
}

py::list to_dlpack(const py::list& memories, const py::list& shapes, const py::list& types) {
  if (memories.size() != shapes.size() || memories.size() != types.size()) {
    throw std::invalid_argument("each memory needs one shape and one type");
  }
  py::list capsules(memories.size());
  for (std::size_t i = 0; i < memories.size(); ++i) {
    capsules[i] = py::none();
    if (memories[i].is_none() || types[i].is_none()) continue;
    const auto [code, bits] = types[i].cast<std::pair<std::uint8_t, std::uint8_t>>();
    capsules[i] = capsule_of(memories[i].cast<Memory&>(),
                             shapes[i].cast<std::vector<std::int64_t>>(), {code, bits, 1});
  }
  return capsules;
}

}  // namespace

void register_dlpack(py::module_& module) {
  module.def(
      "to_dlpack", &to_dlpack, py::arg("memories"), py::arg("shapes"), py::arg("types"),
      "Return a DLPack capsule for each memory that is not None and has a type, else None. "
      "A type is a pair of DLPack's code and bits. A capsule takes ownership of its memory.");
}

}  // namespace streamer
