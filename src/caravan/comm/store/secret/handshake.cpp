#include "caravan/comm/store/secret/handshake.h"

#include "caravan/comm/store/secret/secret.h"
#include "caravan/comm/store/wire/bytes.h"
#include "caravan/comm/store/wire/protocol.h"

namespace caravan::store_protocol {
namespace {

using store_secret::kMacBytes;
using store_secret::kNonceBytes;

constexpr std::string_view kClientPrefix = "caravan store 2, client: ";
constexpr std::string_view kServerPrefix = "caravan store 2, server: ";

/// All fields but the last have a fixed width, so different messages never have the same bytes.
std::string mac_of(std::string_view secret, std::string_view prefix, std::string_view server_nonce,
                   std::string_view client_nonce, std::string_view fields) {
  std::string text(prefix);
  text.append(server_nonce).append(client_nonce).append(fields);
  return store_secret::hmac(secret, text);
}

std::string fields_of_hello(int32_t world_size, int32_t rank, std::string_view job) {
  std::string out;
  append(out, world_size);
  append(out, rank);
  return out.append(job);
}

std::string fields_of_answer(Verdict verdict, int32_t world_size, std::string_view job) {
  std::string out(1, static_cast<char>(verdict));
  append(out, world_size);
  return out.append(job);
}

std::string framed(std::string_view body) {
  std::string out;
  append(out, static_cast<uint32_t>(body.size()));
  return out.append(body);
}

}  // namespace

std::string encode_hello(const JobKey& key, int rank, std::string_view server_nonce, std::string_view client_nonce) {
  const std::string fields = fields_of_hello(key.world_size, rank, key.id);
  std::string body(client_nonce);
  body += mac_of(key.secret, kClientPrefix, server_nonce, client_nonce, fields);
  return framed(body + fields);
}

std::string encode_answer(const JobKey& key, Verdict verdict, std::string_view server_nonce,
                          std::string_view client_nonce) {
  const bool knows_secret = verdict != Verdict::wrong_secret;
  const std::string fields =
      fields_of_answer(verdict, knows_secret ? key.world_size : 0, knows_secret ? key.id : std::string());
  const std::string mac = knows_secret ? mac_of(key.secret, kServerPrefix, server_nonce, client_nonce, fields)
                                       : std::string(kMacBytes, '\0');
  return framed(mac + fields);
}

std::optional<Hello> decode_hello(std::string_view body) {
  constexpr size_t kHead = kNonceBytes + kMacBytes + 8;
  if (body.size() < kHead || body.size() > kHead + kMaxJobIdBytes) return std::nullopt;
  const std::string_view fields = body.substr(kNonceBytes + kMacBytes);
  return Hello{body.substr(0, kNonceBytes), body.substr(kNonceBytes, kMacBytes), read<int32_t>(fields),
               read<int32_t>(fields.substr(4)), fields.substr(8)};
}

std::optional<Answer> decode_answer(std::string_view body) {
  constexpr size_t kHead = kMacBytes + 5;
  if (body.size() < kHead || body.size() > kHead + kMaxJobIdBytes) return std::nullopt;
  const std::string_view fields = body.substr(kMacBytes);
  if (static_cast<uint8_t>(fields[0]) > static_cast<uint8_t>(Verdict::other_world_size)) return std::nullopt;
  return Answer{static_cast<Verdict>(fields[0]), body.substr(0, kMacBytes), read<int32_t>(fields.substr(1)),
                fields.substr(5)};
}

Verdict judge(const JobKey& key, std::string_view server_nonce, const Hello& hello) {
  const std::string expected = mac_of(key.secret, kClientPrefix, server_nonce, hello.nonce,
                                      fields_of_hello(hello.world_size, hello.rank, hello.job));
  if (!store_secret::equal(expected, hello.mac)) return Verdict::wrong_secret;
  if (hello.job != key.id) return Verdict::other_job;
  return hello.world_size == key.world_size ? Verdict::welcome : Verdict::other_world_size;
}

bool is_genuine(const JobKey& key, std::string_view server_nonce, std::string_view client_nonce, const Answer& answer) {
  const std::string fields = fields_of_answer(answer.verdict, answer.world_size, answer.job);
  return answer.verdict != Verdict::wrong_secret &&
         store_secret::equal(mac_of(key.secret, kServerPrefix, server_nonce, client_nonce, fields), answer.mac);
}

}  // namespace caravan::store_protocol
