#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/comm/job_key.h"

/// How a client of a store becomes a member of its job. After the greetings (store_protocol.h):
///
///   server -> client   nonce                                                    32 random bytes
///   client -> server   frame: nonce, mac, world size, rank, job id              mac over both nonces and all fields
///   server -> client   frame: verdict, mac, world size and job id of the store  mac over both nonces and all fields
///
/// mac is HMAC-SHA256 with the job's secret, which itself never travels; each side's nonce is in both, so that nothing
/// recorded can be played again, and each side's mac has a prefix of its own, so that none can be sent back. A client
/// that does not know the secret is told so and nothing else. What follows on the connection is neither signed nor
/// encrypted.
namespace caravan::store_protocol {

inline constexpr size_t kMaxJobIdBytes = 128;
inline constexpr size_t kMaxHandshakeBytes = 256;  ///< of a frame's body

enum class Verdict : uint8_t { welcome = 0, wrong_secret = 1, other_job = 2, other_world_size = 3 };

/// What a client says of itself.
struct Hello {
  std::string_view nonce;
  std::string_view mac;
  int32_t world_size = 0;
  int32_t rank = -1;  ///< -1: it did not say
  std::string_view job;
};

/// What the server answers; `world_size` and `job` are its own, empty for a client without the secret.
struct Answer {
  Verdict verdict = Verdict::welcome;
  std::string_view mac;
  int32_t world_size = 0;
  std::string_view job;
};

/// Whole frames, length and mac included.
std::string encode_hello(const JobKey& key, int rank, std::string_view server_nonce, std::string_view client_nonce);
std::string encode_answer(const JobKey& key, Verdict verdict, std::string_view server_nonce,
                          std::string_view client_nonce);

/// Views into `body`; empty if it is not well-formed.
std::optional<Hello> decode_hello(std::string_view body);
std::optional<Answer> decode_answer(std::string_view body);

/// The server's verdict on a client. Fields are looked at only after the mac over them was found right.
Verdict judge(const JobKey& key, std::string_view server_nonce, const Hello& hello);
/// True if whoever answered knows the secret (never so for wrong_secret: that answer proves nothing).
bool is_genuine(const JobKey& key, std::string_view server_nonce, std::string_view client_nonce, const Answer& answer);

}  // namespace caravan::store_protocol
