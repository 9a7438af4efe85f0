#include "integrity/piece_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

namespace streamer {
namespace {

constexpr std::size_t kNonceBytes = 12;
constexpr std::uint64_t kMostPieceBytes = std::uint64_t{1} << 30;

enum class Direction : int { kDecrypt = 0, kEncrypt = 1 };

void check(int result) {
  if (result != 1) throw std::runtime_error("OpenSSL does not provide AES-256-GCM");
}

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }  // wipes the key
};

// A cipher context with the key of a file; each piece sets its own nonce.
class Context {
 public:
  Context(const std::array<std::byte, kCipherKeyBytes>& key, Direction direction)
      : context_(EVP_CIPHER_CTX_new()) {
    if (!context_) throw std::bad_alloc();
    check(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, bytes_of(key.data()),
                            nullptr, static_cast<int>(direction)));
  }

  void begin(std::uint64_t number) {
    // The piece's number, the most significant byte first.
    std::array<unsigned char, kNonceBytes> nonce{};
    for (std::size_t i = 0; i < sizeof number; ++i) {
      nonce[kNonceBytes - 1 - i] = static_cast<unsigned char>(number >> (8 * i));
    }
    check(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1));
  }

  void update(std::span<const std::byte> from, std::byte* to) {
    int written = 0;
    check(EVP_CipherUpdate(context_.get(), writable(to), &written, bytes_of(from.data()),
                           static_cast<int>(from.size())));
  }

  void finish_with_tag(std::byte* tag) {
    check(is_finished() ? 1 : 0);
    check(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag));
  }

  bool has_tag(const std::byte* tag) {
    std::array<std::byte, kTagBytes> expected;  // OpenSSL takes a pointer to non-const
    std::memcpy(expected.data(), tag, kTagBytes);
    check(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, expected.data()));
    return is_finished();
  }

 private:
  static const unsigned char* bytes_of(const std::byte* data) {
    return reinterpret_cast<const unsigned char*>(data);
  }
  static unsigned char* writable(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }

  bool is_finished() {
    std::array<std::byte, kTagBytes> rest;  // GCM writes nothing in its final call
    int written = 0;
    return EVP_CipherFinal_ex(context_.get(), writable(rest.data()), &written) == 1;
  }

  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context_;
};

}  // namespace

PieceCipher::PieceCipher(std::span<const std::byte> key, std::uint64_t piece_bytes)
    : piece_bytes_(piece_bytes) {
  if (key.size() != key_.size()) throw std::invalid_argument("a key of AES-256 has 32 bytes");
  if (piece_bytes == 0 || piece_bytes > kMostPieceBytes) {
    throw std::invalid_argument("a piece has 1 to 2^30 bytes");
  }
  std::copy(key.begin(), key.end(), key_.begin());
}

PieceCipher::~PieceCipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

std::uint64_t PieceCipher::pieces_in(std::uint64_t begin, std::uint64_t end) const {
  return begin == end ? 0 : (end - 1) / piece_bytes_ - begin / piece_bytes_ + 1;
}

void PieceCipher::encrypt(std::uint64_t position, std::uint64_t first,
                          std::span<const std::byte> plain, std::byte* to,
                          std::span<std::byte> tags) const {
  check_tags(position, plain.size(), tags.size());
  Context context(key_, Direction::kEncrypt);
  const std::uint64_t begin = position;
  const std::uint64_t end = begin + plain.size();
  for (std::byte* tag = tags.data(); position < end; ++first, tag += kTagBytes) {
    const std::uint64_t size = end_of_piece(position, end) - position;
    context.begin(first);
    context.update(plain.subspan(position - begin, size), to + (position - begin));
    context.finish_with_tag(tag);
    position += size;
  }
}

std::uint64_t PieceCipher::decrypt(std::uint64_t position, std::uint64_t first,
                                   std::span<std::byte> data,
                                   std::span<const std::byte> tags) const {
  check_tags(position, data.size(), tags.size());
  Context context(key_, Direction::kDecrypt);
  std::uint64_t wrong = kAllRight;
  const std::uint64_t begin = position;
  const std::uint64_t end = begin + data.size();
  for (const std::byte* tag = tags.data(); position < end; ++first, tag += kTagBytes) {
    const std::uint64_t size = end_of_piece(position, end) - position;
    const std::span<std::byte> piece = data.subspan(position - begin, size);
    context.begin(first);
    context.update(piece, piece.data());
    if (!context.has_tag(tag)) {
      std::memset(piece.data(), 0, piece.size());
      wrong = std::min(wrong, first);
    }
    position += size;
  }
  return wrong;
}

std::uint64_t PieceCipher::end_of_piece(std::uint64_t position, std::uint64_t end) const {
  return std::min(end, (position / piece_bytes_ + 1) * piece_bytes_);
}

void PieceCipher::check_tags(std::uint64_t position, std::uint64_t bytes,
                             std::size_t tag_bytes) const {
  if (tag_bytes != pieces_in(position, position + bytes) * kTagBytes) {
    throw std::invalid_argument("the number of tags must equal the number of pieces");
  }
}

}  // namespace streamer
