// Rows of a safetensors header's plain entries, for core/format/header_entries.py only.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/plain_entries.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

constexpr std::size_t kMostKinds = 4096;  // kept at a time; a model has some hundred

// A million entries take some tenths of a second, which is too long for other threads and Ctrl-C.
constexpr std::size_t kEntriesBetweenPauses = 8192;

void let_others_run() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  const GilReleased unlocked;
}

py::object owned(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::object number_of(std::uint64_t value) { return owned(PyLong_FromUnsignedLongLong(value)); }

// Python's garbage collector would scan a million new tuples again and again. A tuple of texts,
// numbers and such tuples is part of no cycle.
py::object untracked(py::object tuple) {
  PyObject_GC_UnTrack(tuple.ptr());
  return tuple;
}

template <typename... Values>
py::object row_of(Values... values) {
  py::object row = owned(PyTuple_New(sizeof...(values)));
  py::ssize_t index = 0;
  (PyTuple_SET_ITEM(row.ptr(), index++, values.release().ptr()), ...);
  return untracked(std::move(row));
}

template <typename Char>
class RowReader {
 public:
  RowReader(const py::str& text, const py::dict& bits_of_dtype, std::size_t max_rank)
      : text_(text),
        characters_(static_cast<const Char*>(PyUnicode_DATA(text.ptr())),
                    static_cast<std::size_t>(PyUnicode_GET_LENGTH(text.ptr()))),
        bits_of_dtype_(bits_of_dtype),
        max_rank_(max_rank) {}

  // Appends a row for each valid plain entry. Returns the position of the first other member.
  std::size_t append(std::size_t position, std::uint64_t data_begin, py::list& rows) {
    PlainEntries<Char> entries(characters_, position);
    std::size_t read = 0;
    std::uint64_t last = 0;
    py::object last_number = number_of(data_begin);
    while (const auto entry = entries.next()) {
      const Kind* const kind = kind_of(*entry);
      if (kind == nullptr || entry->end < entry->begin ||
          entry->end - entry->begin != kind->size_bytes) {
        return position;
      }
      // Most entries begin at the end of the last one, so both share the number object.
      const py::object begin =
          entry->begin == last ? last_number : number_of(data_begin + entry->begin);
      last = entry->end;
      last_number = number_of(data_begin + last);
      rows.append(row_of(text_of(entry->name), kind->dtype, kind->shape, begin, last_number));
      position = entries.position();
      if (++read % kEntriesBetweenPauses == 0) let_others_run();
    }
    return position;
  }

 private:
  using Text = std::basic_string_view<Char>;
  struct Kind {
    py::object dtype;
    py::object shape;
    std::uint64_t size_bytes = 0;
  };

  py::object text_of(Text part) const {
    const py::ssize_t begin = part.data() - characters_.data();
    return owned(
        PyUnicode_Substring(text_.ptr(), begin, begin + static_cast<py::ssize_t>(part.size())));
  }

  // Returns null if there is no such kind: the dtype is unknown, or the shape is not possible.
  const Kind* kind_of(const PlainEntry<Char>& entry) {
    // The text from the dtype to the end of the shape.
    const Text written(
        entry.dtype.data(),
        static_cast<std::size_t>(entry.shape.data() + entry.shape.size() - entry.dtype.data()));
    const auto known = kinds_.find(written);
    if (known != kinds_.end()) return &known->second;
    const py::object dtype = text_of(entry.dtype);
    PyObject* const bits = PyDict_GetItemWithError(bits_of_dtype_.ptr(), dtype.ptr());
    if (bits == nullptr) {
      if (PyErr_Occurred()) throw py::error_already_set();
      return nullptr;
    }
    // Before memory is allocated for the dimensions.
    const auto commas = std::count(entry.shape.begin(), entry.shape.end(), Char{','});
    const std::size_t rank = entry.shape.empty() ? 0 : static_cast<std::size_t>(commas) + 1;
    if (rank > max_rank_) return nullptr;
    const std::vector<std::uint64_t> dimensions = PlainEntries<Char>::dimensions(entry.shape);
    const auto size_bytes = bytes_of(dimensions, py::handle(bits).cast<std::uint64_t>());
    if (!size_bytes) return nullptr;
    if (kinds_.size() == kMostKinds) {
      kinds_.clear();
      numbers_.clear();
    }
    return &kinds_.emplace(written, Kind{dtype, shape_of(dimensions), *size_bytes}).first->second;
  }

  // Uses one Python object for equal dimensions, because an integer takes more memory than its
  // digits.
  py::object shape_of(const std::vector<std::uint64_t>& dimensions) {
    py::object shape = owned(PyTuple_New(static_cast<py::ssize_t>(dimensions.size())));
    py::ssize_t index = 0;
    for (const std::uint64_t dimension : dimensions) {
      py::object& number = numbers_[dimension];
      if (!number) number = number_of(dimension);
      PyTuple_SET_ITEM(shape.ptr(), index++, py::object(number).release().ptr());
    }
    return untracked(std::move(shape));
  }

  const py::str& text_;
  const Text characters_;
  const py::dict& bits_of_dtype_;
  const std::size_t max_rank_;
  std::unordered_map<Text, Kind> kinds_;
  std::unordered_map<std::uint64_t, py::object> numbers_;
};

std::size_t read_plain_entries(const py::str& text, std::size_t position, std::uint64_t data_begin,
                               py::list rows, const py::dict& bits_of_dtype, std::size_t max_rank) {
  if (position > py::len(text)) throw std::invalid_argument("no such position");
  const auto read = [&](auto character) {
    return RowReader<decltype(character)>(text, bits_of_dtype, max_rank)
        .append(position, data_begin, rows);
  };
  switch (PyUnicode_KIND(text.ptr())) {
    case PyUnicode_1BYTE_KIND:
      return read(char{});
    case PyUnicode_2BYTE_KIND:
      return read(char16_t{});
    default:
      return read(char32_t{});
  }
}

}  // namespace

void register_header_entries(py::module_& module) {
  module.def("read_plain_entries", &read_plain_entries, py::arg("text"), py::arg("position"),
             py::arg("data_begin"), py::arg("rows"), py::kw_only(), py::arg("bits_of_dtype"),
             py::arg("max_rank"),
             "Append a row for each valid entry in the plain form from `position` on; return the "
             "position of the first member in another form. See format/plain_entries.h.");
}

}  // namespace streamer
