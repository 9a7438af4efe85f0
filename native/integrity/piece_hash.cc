#include "integrity/piece_hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace streamer {

Hash sha256(std::span<const std::byte> data) {
  Hash hash;
  auto* const to = reinterpret_cast<unsigned char*>(hash.data());
  if (EVP_Digest(data.data(), data.size(), to, nullptr, EVP_sha256(), nullptr) != 1)
    throw std::runtime_error("OpenSSL computes no SHA-256");
  return hash;
}

void hash_pieces(std::span<const std::byte> data, std::uint64_t begin, PieceHashes& hashes) {
  while (!data.empty()) {
    const std::uint64_t left = kHashPieceBytes - begin % kHashPieceBytes;
    const std::size_t size = std::min<std::uint64_t>(data.size(), left);
    hashes[begin] = sha256(data.first(size));
    begin += size;
    data = data.subspan(size);
  }
}

Hash joined(const PieceHashes& hashes) {
  std::vector<std::byte> all;
  all.reserve(hashes.size() * sizeof(Hash));
  for (const auto& [begin, hash] : hashes) all.insert(all.end(), hash.begin(), hash.end());
  return sha256(all);
}

std::string hexadecimal(const Hash& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : hash) {
    text += kDigits[std::to_integer<unsigned>(byte >> 4)];
    text += kDigits[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace streamer
