#include "format/plain_entries.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace streamer {
namespace {

const std::string kEntry = R"("a":{"dtype":"U8","shape":[2,4],"data_offsets":[8,16]})";

template <typename Char = char>
std::vector<PlainEntry<Char>> read(std::basic_string_view<Char> text) {
  PlainEntries<Char> entries(text, 0);
  std::vector<PlainEntry<Char>> found;
  while (const auto entry = entries.next()) found.push_back(*entry);
  return found;
}

bool is_plain(const std::string& entry) {
  const std::string text = entry + "}";
  PlainEntries<char> entries(text, 0);
  const bool is_read = entries.next().has_value();
  CHECK(entries.position() == (is_read ? entry.size() : 0));
  return is_read;
}

std::string with(std::string_view part, std::string_view replacement) {
  std::string text = kEntry;
  return text.replace(text.find(part), part.size(), replacement);
}

TEST_CASE("entries are read one after the other, with and without spaces") {
  const std::string text = kEntry +
                           " ,\n"
                           R"("b": {"dtype": "F6_E2M3", "shape": [], )"
                           R"("data_offsets": [16, 17]})"
                           " \t}";
  const auto found = read<char>(text);
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "a");
  CHECK(found[0].dtype == "U8");
  CHECK(found[0].shape == "2,4");
  CHECK(found[0].begin == 8);
  CHECK(found[0].end == 16);
  CHECK(found[1].name == "b");
  CHECK(found[1].dtype == "F6_E2M3");
  CHECK(found[1].shape.empty());
  CHECK(found[1].end == 17);
}

TEST_CASE("names may have any characters that need no escape, of each width") {
  CHECK(is_plain(with("\"a\"", "\"\"")));
  CHECK(is_plain(with("\"a\"", "\"w\xe9{},:[]\x7f\"")));
  const std::u16string wide = u"\"重\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
  REQUIRE(read<char16_t>(wide).size() == 1);
  CHECK(read<char16_t>(wide)[0].name == u"重");
  const std::u32string wider = U"\"😀\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
  REQUIRE(read<char32_t>(wider).size() == 1);
  CHECK(read<char32_t>(wider)[0].name == U"😀");
}

TEST_CASE("another form is not read, and the position stays at its begin") {
  for (const std::string& other : {with("\"a\"", "\"a\\u0062\""),
                                   with("\"a\"", "\"a\nb\""),
                                   with("\"a\"", "\"__metadata__\""),
                                   with("\"a\"", "a"),
                                   with("U8", "u8"),
                                   with("U8", ""),
                                   with("\"U8\"", "null"),
                                   with("[2,4]", "[2,4,]"),
                                   with("[2,4]", "[,2]"),
                                   with("[2,4]", "[02,4]"),
                                   with("[2,4]", "[2 ,4]"),
                                   with("[2,4]", "[2,  4]"),
                                   with("[2,4]", "[-2,4]"),
                                   with("[2,4]", "[2.0,4]"),
                                   with("[2,4]", "2"),
                                   with("[8,16]", "[8]"),
                                   with("[8,16]", "[8,16,17]"),
                                   with("[8,16]", "[08,16]"),
                                   with("[8,16]", "[8,+16]"),
                                   with("[8,16]", "[8,10000000000000000000]"),
                                   with("]}", "],\"x\":1}"),
                                   with("]}", "]"),
                                   with("]}", "]},"),
                                   with("]}", "]}x"),
                                   with(":{", "  :{"),
                                   with(":{", ":  {")}) {
    CHECK_MESSAGE(!is_plain(other), other);
  }
  CHECK(is_plain(with("[8,16]", "[8,9999999999999999999]")));
}

TEST_CASE("a text that ends anywhere is not read beyond its end") {
  const std::string text = kEntry + "," + kEntry;
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::vector<char> exact(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(read<char>({exact.data(), size}).size() == (size > kEntry.size() + 1 ? 1 : 0));
  }
}

TEST_CASE("the dimensions of a shape are its numbers") {
  using Dimensions = std::vector<std::uint64_t>;
  CHECK(PlainEntries<char>::dimensions("") == Dimensions{});
  CHECK(PlainEntries<char>::dimensions("7") == Dimensions{7});
  CHECK(PlainEntries<char>::dimensions("0, 12,9999999999999999999") ==
        Dimensions{0, 12, 9'999'999'999'999'999'999U});
}

TEST_CASE("a tensor has bytes unless a product exceeds 64 bits, or it ends inside of a byte") {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;
  CHECK(bytes_of({}, 16) == 2);
  CHECK(bytes_of({2, 3}, 4) == 3);
  CHECK(bytes_of({0, kHuge, 4}, 8) == 0);
  CHECK_FALSE(bytes_of({kHuge, 4, 0}, 8));
  CHECK_FALSE(bytes_of({kHuge}, 8));
  CHECK_FALSE(bytes_of({3}, 4));
}

}  // namespace
}  // namespace streamer
