#include "schedule/seal_ledger.h"

#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace streamer {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kPiece = 64;
constexpr std::uint64_t kBegin = 10;  // begin of the item in its object
constexpr std::uint64_t kEnd = 200;

// One item of 190 bytes, in four pieces, which have the numbers from 3 on.
class Encrypted {
 public:
  Encrypted() : data(plain.size()) {
    const Bytes key(kCipherKeyBytes, std::byte{7});
    auto cipher = std::make_shared<PieceCipher>(key, kPiece);
    SealedFile file{cipher, Bytes(7 * kTagBytes)};
    cipher->encrypt(kBegin, 3, plain, data.data(),
                    std::span(file.tags).subspan(3 * kTagBytes, 4 * kTagBytes));
    plan.seals.files.push_back(std::move(file));
    plan.seals.items.push_back({0, 3});
    plan.items.push_back({0, kBegin, kEnd});
    plan.spans.push_back({0, kBegin, kEnd, 0, 1});
  }

  Block block(std::uint64_t begin, std::uint64_t end) {
    Block block;
    block.begin = begin;
    block.end = end;
    block.destinations.push_back({data.data() + (begin - kBegin), end - begin, 0});
    return block;
  }

  Bytes plain = Bytes(kEnd - kBegin, std::byte{42});
  Bytes data;
  Plan plan;
};

TEST_CASE("blocks of an encrypted item are decrypted in place, in any order") {
  Encrypted item;
  SealLedger ledger(item.plan.seals, item.plan.items);
  ledger.decrypt(item.block(128, kEnd));
  ledger.decrypt(item.block(kBegin, 128));
  CHECK(ledger.judge(0) == Verdict::kRight);
  CHECK(item.data == item.plain);
}

TEST_CASE("an item with a wrong piece is read once more, and the second failure is final") {
  Encrypted item;
  SealLedger ledger(item.plan.seals, item.plan.items);
  const Bytes sealed = item.data;
  for (const Verdict verdict : {Verdict::kReadAgain, Verdict::kWrong}) {
    item.data = sealed;
    item.data[70] ^= std::byte{1};
    ledger.decrypt(item.block(kBegin, kEnd));
    CHECK(ledger.judge(0) == verdict);
  }
  CHECK(SealLedger::error_of(item.plan.items[0], 0).code == ErrorCode::kTampered);
}

TEST_CASE("an item that is right at the second read is right") {
  Encrypted item;
  SealLedger ledger(item.plan.seals, item.plan.items);
  const Bytes sealed = item.data;
  item.data[70] ^= std::byte{1};
  ledger.decrypt(item.block(kBegin, kEnd));
  CHECK(ledger.judge(0) == Verdict::kReadAgain);
  item.data = sealed;
  ledger.decrypt(item.block(kBegin, kEnd));
  CHECK(ledger.judge(0) == Verdict::kRight);
  CHECK(item.data == item.plain);
}

TEST_CASE("a plan of encrypted items that does not fit its items is refused") {
  const auto is_refused = [](auto change) {
    Encrypted item;
    CHECK_NOTHROW(check_plan(item.plan, 1));
    change(item.plan.seals);
    CHECK_THROWS_AS(check_plan(item.plan, 1), std::invalid_argument);
  };
  is_refused([](SealPlan& seals) { seals.items.push_back({0, 3}); });
  is_refused([](SealPlan& seals) { seals.items[0].file = 1; });
  is_refused([](SealPlan& seals) { seals.items[0].first_piece = 4; });
  is_refused([](SealPlan& seals) { seals.items[0].first_piece = UINT64_MAX; });
  is_refused([](SealPlan& seals) { seals.files[0].tags.resize(6 * kTagBytes); });
}

}  // namespace
}  // namespace streamer
