#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// The wire protocol of StoreServer and its clients. Both sides start with a greeting of 8 bytes (magic, version), and
/// the client authenticates itself (handshake.h). It then sends one request at a time and reads one reply. Requests and
/// replies are frames: a length of 4 bytes, then a body of that many bytes. Integers are little-endian.
namespace caravan::store_protocol {

inline constexpr uint16_t kVersion = 3;
inline constexpr size_t kGreetingBytes = 8;
inline constexpr size_t kLengthBytes = 4;
inline constexpr size_t kMaxKeyBytes = 4096;
inline constexpr size_t kMaxValueBytes = size_t{1} << 20;
inline constexpr size_t kMaxFrameBytes = kMaxKeyBytes + kMaxValueBytes + 16;

enum class Verb : uint8_t { set = 1, get = 2, has = 3, add = 4, remove = 5 };
enum class Status : uint8_t { ok = 0, not_a_counter = 1, timed_out = 2 };

struct Request {
  Verb verb = Verb::set;
  std::string_view key;
  std::string_view value;  ///< set: the value; add: the amount, 8 bytes; get: the time-out in milliseconds, 8 bytes
};

struct Reply {
  Status status = Status::ok;
  std::string_view value;  ///< get: the value; has: one byte; add: the sum, 8 bytes; not_a_counter: what the key holds
};

std::string greeting();
/// The version in a greeting; empty if `bytes` is not one.
std::optional<uint16_t> greeting_version(std::string_view bytes);

/// Complete frames, including the length.
std::string encode(const Request& request);
std::string encode(const Reply& reply);

/// The length of the body that follows.
size_t body_bytes(std::string_view length);
/// Views into `body`; empty if it is malformed.
std::optional<Request> decode_request(std::string_view body);
std::optional<Reply> decode_reply(std::string_view body);

std::string encode_number(int64_t number);
int64_t decode_number(std::string_view bytes);  ///< 8 bytes

/// The key that the server sets when the last connection of `rank` closes.
inline std::string disconnected_key(int rank) { return "/disconnected/" + std::to_string(rank); }

}  // namespace caravan::store_protocol
