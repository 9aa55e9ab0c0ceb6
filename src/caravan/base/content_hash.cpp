#include "caravan/base/content_hash.h"

#include <array>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace caravan {

struct ContentHasher::State {
  XXH3_state_t xxh;
};

std::string ContentHash::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

ContentHash content_hash(std::span<const std::byte> bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

ContentHasher::ContentHasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }

ContentHasher::~ContentHasher() = default;

void ContentHasher::update(std::span<const std::byte> bytes) noexcept {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

void ContentHasher::update(uint64_t number) noexcept {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i));
  update(bytes);
}

ContentHash ContentHasher::value() const noexcept {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace caravan
