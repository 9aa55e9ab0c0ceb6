#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace caravan {

/// A 128-bit hash of some content (XXH3), the same on every machine. Not cryptographic.
struct ContentHash {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const ContentHash&) const = default;
  /// 32 hexadecimal digits.
  std::string hex() const;
};

ContentHash content_hash(std::span<const std::byte> bytes) noexcept;
inline ContentHash content_hash(std::string_view text) noexcept { return content_hash(std::as_bytes(std::span(text))); }

/// Computes the same hash from content that arrives in pieces, wherever it is split.
class ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  void update(std::span<const std::byte> bytes) noexcept;
  void update(std::string_view text) noexcept { update(std::as_bytes(std::span(text))); }
  /// A number, as its eight little-endian bytes.
  void update(uint64_t number) noexcept;
  ContentHash value() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace caravan
