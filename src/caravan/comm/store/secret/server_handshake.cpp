#include "caravan/comm/store/secret/server_handshake.h"

#include <fmt/format.h>

#include "caravan/comm/store/secret/handshake.h"
#include "caravan/comm/store/secret/secret.h"
#include "caravan/comm/store/wire/protocol.h"

namespace caravan {

using namespace store_protocol;

std::string printable(std::string_view bytes, size_t most) {
  std::string out;
  for (const char byte : bytes.substr(0, most)) {
    const bool plain = byte >= ' ' && byte <= '~' && byte != '"' && byte != '\\';
    out += plain ? std::string(1, byte) : fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return bytes.size() > most ? out + ".." : out;
}

ServerHandshake::State ServerHandshake::advance(std::string& in, std::string& out) {
  const State state = greeted_ ? State::pending : read_greeting(in, out);
  return state == State::pending && greeted_ ? read_hello(in, out) : state;
}

ServerHandshake::State ServerHandshake::reject(std::string reason) {
  reason_ = std::move(reason);
  return State::rejected;
}

/// Any client gets our greeting, so that one of another program can tell what it has connected to.
ServerHandshake::State ServerHandshake::read_greeting(std::string& in, std::string& out) {
  if (in.size() < kGreetingBytes) return State::pending;
  const std::string theirs = in.substr(0, kGreetingBytes);
  in.erase(0, kGreetingBytes);
  out += greeting();
  const auto version = greeting_version(theirs);
  if (!version) return reject(fmt::format("\"{}\" is not a greeting", printable(theirs, kGreetingBytes)));
  if (*version != kVersion) {
    return reject(fmt::format("its protocol has version {}, this server's version {}", *version, kVersion));
  }
  // The answer depends on the nonce, which the client cannot know yet.
  if (!in.empty()) return reject("it sent data before the server's greeting");
  nonce_ = store_secret::random_bytes(store_secret::kNonceBytes);
  out += nonce_;
  greeted_ = true;
  return State::pending;
}

ServerHandshake::State ServerHandshake::read_hello(std::string& in, std::string& out) {
  if (in.size() < kLengthBytes) return State::pending;
  const size_t bytes = body_bytes(in);
  if (bytes > kMaxHandshakeBytes) return reject(fmt::format("it announced a handshake of {} bytes", bytes));
  if (in.size() < kLengthBytes + bytes) return State::pending;
  if (in.size() > kLengthBytes + bytes) return reject("it sent data before the handshake was complete");
  const std::string frame = std::move(in);
  in.clear();
  const auto hello = decode_hello(std::string_view(frame).substr(kLengthBytes));
  if (!hello) return reject("its handshake is malformed");
  const Verdict verdict = judge(*key_, nonce_, *hello);
  out += encode_answer(*key_, verdict, nonce_, hello->nonce);
  rank_ = hello->rank;
  const std::string job = printable(hello->job, kMaxJobIdBytes);
  const std::string claims = fmt::format("rank {} of {}, job \"{}\"", hello->rank, hello->world_size, job);
  switch (verdict) {
    case Verdict::welcome: return State::accepted;
    case Verdict::wrong_secret:
      return reject(fmt::format("it does not have the secret of job \"{}\"; it claims to be {}", key_->id, claims));
    case Verdict::other_job: return reject(fmt::format("it belongs to {}; this is job \"{}\"", claims, key_->id));
    default: return reject(fmt::format("it belongs to {}; this job has {} ranks", claims, key_->world_size));
  }
}

}  // namespace caravan
