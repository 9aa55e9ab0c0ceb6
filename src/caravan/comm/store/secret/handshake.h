#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/comm/store/secret/job_key.h"

/// How a client of a store proves that it belongs to the job. After the greetings (protocol.h):
///
///   server -> client   nonce                                                    32 random bytes
///   client -> server   frame: nonce, mac, world size, rank, job id              mac over both nonces and all fields
///   server -> client   frame: verdict, mac, world size and job id of the store  mac over both nonces and all fields
///
/// mac is HMAC-SHA256 keyed with the job's secret, which is never sent. Both nonces are part of both macs, so a
/// recorded handshake cannot be replayed. Each side's mac has its own prefix, so it cannot be reflected. A client that
/// does not know the secret learns that and nothing else. What follows on the connection is neither signed nor
/// encrypted.
namespace caravan::store_protocol {

inline constexpr size_t kMaxJobIdBytes = 128;
inline constexpr size_t kMaxHandshakeBytes = 256;  ///< of a frame's body

enum class Verdict : uint8_t { welcome = 0, wrong_secret = 1, other_job = 2, other_world_size = 3 };

/// A client's part.
struct Hello {
  std::string_view nonce;
  std::string_view mac;
  int32_t world_size = 0;
  int32_t rank = -1;  ///< -1: unknown
  std::string_view job;
};

/// The server's answer. `world_size` and `job` are the server's; empty for a client without the secret.
struct Answer {
  Verdict verdict = Verdict::welcome;
  std::string_view mac;
  int32_t world_size = 0;
  std::string_view job;
};

/// Complete frames, including length and mac.
std::string encode_hello(const JobKey& key, int rank, std::string_view server_nonce, std::string_view client_nonce);
std::string encode_answer(const JobKey& key, Verdict verdict, std::string_view server_nonce,
                          std::string_view client_nonce);

/// Views into `body`; empty if it is malformed.
std::optional<Hello> decode_hello(std::string_view body);
std::optional<Answer> decode_answer(std::string_view body);

/// The server's verdict on a client. Verifies the mac before it reads the other fields.
Verdict judge(const JobKey& key, std::string_view server_nonce, const Hello& hello);
/// Whether the server knows the secret. Always false for wrong_secret, which carries no proof.
bool is_genuine(const JobKey& key, std::string_view server_nonce, std::string_view client_nonce, const Answer& answer);

}  // namespace caravan::store_protocol
