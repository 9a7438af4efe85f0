#include "net/address_book.h"

#include <doctest/doctest.h>

#include <set>

namespace streamer {
namespace {

std::shared_ptr<AddressBook> book_with(const std::vector<std::string>& addresses,
                                       const std::string& server = "https://store.invalid") {
  auto book = std::make_shared<AddressBook>(server);
  book->take_answer(addresses);
  return book;
}

TEST_CASE("each entry begins with the next address, and contains all addresses") {
  const auto book = book_with({"10.0.0.1", "10.0.0.2", "10.0.0.3"});
  const TimePoint now = Clock::now();
  CHECK(book->next_entry(now) == "+store.invalid:443:10.0.0.1,10.0.0.2,10.0.0.3");
  CHECK(book->next_entry(now) == "+store.invalid:443:10.0.0.2,10.0.0.3,10.0.0.1");
  CHECK(book->next_entry(now) == "+store.invalid:443:10.0.0.3,10.0.0.1,10.0.0.2");
  CHECK(book->next_entry(now) == "+store.invalid:443:10.0.0.1,10.0.0.2,10.0.0.3");
}

TEST_CASE("IP versions keep their order, and the addresses of each version rotate separately") {
  const auto book =
      book_with({"fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2"}, "http://store.invalid:9000");
  const TimePoint now = Clock::now();
  CHECK(book->next_entry(now) == "+store.invalid:9000:[fd00::1],[fd00::2],10.0.0.1,10.0.0.2");
  CHECK(book->next_entry(now) == "+store.invalid:9000:[fd00::2],[fd00::1],10.0.0.2,10.0.0.1");
}

TEST_CASE("an entry is empty if there is no choice between addresses") {
  const TimePoint now = Clock::now();
  CHECK(book_with({})->next_entry(now).empty());
  CHECK(book_with({"10.0.0.1"})->next_entry(now).empty());
  CHECK(book_with({"::1", "127.0.0.1"}, "http://localhost")->next_entry(now).empty());
  for (const char* server : {"http://127.0.0.1:80", "https://[::1]:443", "nfs://store.invalid"}) {
    CHECK(book_with({"10.0.0.1", "10.0.0.2"}, server)->next_entry(now).empty());
  }
}

TEST_CASE("an address that is much slower than the others is left out for a while") {
  const auto book = book_with({"10.0.0.1", "10.0.0.2", "10.0.0.3"});
  const TimePoint now = Clock::now();
  for (int i = 0; i < 8; ++i) {
    book->record("10.0.0.1", 90e6, now);
    book->record("10.0.0.2", 20e6, now);
    book->record("10.0.0.3", 80e6, now);
  }
  CHECK(book->is_left_out("10.0.0.2", now));
  CHECK_FALSE(book->is_left_out("10.0.0.1", now));
  CHECK(book->next_entry(now).find("10.0.0.2") == std::string::npos);
  CHECK_FALSE(book->is_left_out("10.0.0.2", after(now, 31)));
  CHECK(book->next_entry(after(now, 31)).find("10.0.0.2") != std::string::npos);
}

TEST_CASE("one slow answer leaves no address out, and one of two addresses always stays") {
  const auto book = book_with({"10.0.0.1", "10.0.0.2"});
  const TimePoint now = Clock::now();
  for (int i = 0; i < 8; ++i) {
    book->record("10.0.0.1", 90e6, now);
    book->record("10.0.0.2", i == 5 ? 20e6 : 90e6, now);
  }
  CHECK_FALSE(book->is_left_out("10.0.0.2", now));
  for (int i = 0; i < 20; ++i) {
    book->record("10.0.0.1", 1e6, now);
    book->record("10.0.0.2", 90e6, now);
  }
  CHECK(book->is_left_out("10.0.0.1", now));
  for (int i = 0; i < 20; ++i) book->record("10.0.0.2", 1e6, now);
  CHECK_FALSE(book->is_left_out("10.0.0.2", now));
}

TEST_CASE("an address that does not answer is left out at once, but never the last address") {
  const auto book = book_with({"10.0.0.1", "10.0.0.2"});
  const TimePoint now = Clock::now();
  CHECK_FALSE(book->has_left_out(now));
  book->record_silence("10.0.0.1", now);
  CHECK(book->has_left_out(now));
  for (int i = 0; i < 2; ++i) CHECK(book->next_entry(now) == "+store.invalid:443:10.0.0.2");
  book->record_silence("10.0.0.2", now);
  CHECK_FALSE(book->is_left_out("10.0.0.2", now));
  CHECK_FALSE(book->has_left_out(after(now, 31)));
}

TEST_CASE("the measurements of an address stay when the resolver returns it again") {
  const auto book = book_with({"10.0.0.1", "10.0.0.2"});
  const TimePoint now = Clock::now();
  for (int i = 0; i < 8; ++i) {
    book->record("10.0.0.1", 90e6, now);
    book->record("10.0.0.2", 9e6, now);
  }
  book->take_answer({"10.0.0.2", "10.0.0.3"});
  CHECK(book->is_left_out("10.0.0.2", now));
  book->take_answer({});  // the resolver failed
  CHECK(book->is_left_out("10.0.0.2", now));
}

}  // namespace
}  // namespace streamer
