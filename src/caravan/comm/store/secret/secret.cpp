#include "caravan/comm/store/secret/secret.h"

#include <cerrno>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "caravan/base/error.h"

namespace caravan::store_secret {

std::string random_bytes(size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t have = 0; have < bytes;) {
    const ssize_t got = getrandom(out.data() + have, bytes - have, 0);
    if (got < 0 && errno != EINTR) {
      throw ResourceError({.op = "store",
                           .subject = "secret",
                           .fact = "the kernel's random number generator is not available",
                           .action = "check whether a sandbox forbids getrandom"});
    }
    if (got > 0) have += static_cast<size_t>(got);
  }
  return out;
}

std::string random_hex(size_t bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char byte : random_bytes(bytes)) {
    out.push_back(kDigits[static_cast<unsigned char>(byte) >> 4]);
    out.push_back(kDigits[static_cast<unsigned char>(byte) & 15]);
  }
  return out;
}

std::string hmac(std::string_view secret, std::string_view text) {
  std::string out(kMacBytes, '\0');
  unsigned int bytes = 0;
  const auto* done = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &bytes);
  if (done == nullptr || bytes != kMacBytes) {
    throw InternalError({.op = "store", .subject = "secret", .fact = "HMAC-SHA256 failed", .where = "", .action = ""});
  }
  return out;
}

bool equal(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace caravan::store_secret
