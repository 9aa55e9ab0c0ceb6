#pragma once

#include <string>
#include <string_view>

/// Cryptography for the store's handshake.
namespace caravan::store_secret {

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;

/// Bytes of the kernel's random number generator. Throws ResourceError if it is not available.
std::string random_bytes(size_t bytes);
/// 2 * `bytes` hexadecimal digits.
std::string random_hex(size_t bytes);

/// HMAC-SHA256 (RFC 2104, FIPS 180-4) of `text`: kMacBytes bytes. The secret may be empty.
std::string hmac(std::string_view secret, std::string_view text);

/// Compares in a time that depends only on the lengths.
bool equal(std::string_view a, std::string_view b) noexcept;

}  // namespace caravan::store_secret
