#pragma once

#include <string>
#include <string_view>

/// The little cryptography of the store's handshake.
namespace caravan::store_secret {

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;

/// Bytes of the kernel's generator. Throws ResourceError if it has none.
std::string random_bytes(size_t bytes);
/// 2 * `bytes` hexadecimal digits.
std::string random_hex(size_t bytes);

/// HMAC-SHA256 (RFC 2104, FIPS 180-4) of `text`: kMacBytes bytes. An empty secret is a key like any other.
std::string hmac(std::string_view secret, std::string_view text);

/// Compares in a time that depends on the lengths alone.
bool equal(std::string_view a, std::string_view b) noexcept;

}  // namespace caravan::store_secret
