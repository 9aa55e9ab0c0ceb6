#include "caravan/comm/store_door.h"

#include <fmt/format.h>

#include "caravan/comm/store_handshake.h"
#include "caravan/comm/store_protocol.h"
#include "caravan/comm/store_secret.h"

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

StoreDoor::State StoreDoor::take(std::string& in, std::string& out) {
  const State state = greeted_ ? State::waits : take_greeting(in, out);
  return state == State::waits && greeted_ ? take_hello(in, out) : state;
}

StoreDoor::State StoreDoor::refuse(std::string reason) {
  reason_ = std::move(reason);
  return State::refused;
}

/// A stranger gets our greeting, too, so that it sees whom it met.
StoreDoor::State StoreDoor::take_greeting(std::string& in, std::string& out) {
  if (in.size() < kGreetingBytes) return State::waits;
  const std::string theirs = in.substr(0, kGreetingBytes);
  in.erase(0, kGreetingBytes);
  out += greeting();
  const auto version = greeting_version(theirs);
  if (!version) return refuse(fmt::format("\"{}\" is no greeting of a rank", printable(theirs, kGreetingBytes)));
  if (*version != kVersion) {
    return refuse(fmt::format("it speaks version {} of the store's protocol, this is version {}", *version, kVersion));
  }
  // Whoever speaks before it heard the nonce cannot have answered it.
  if (!in.empty()) return refuse("it sent more than a greeting before it was answered");
  nonce_ = store_secret::random_bytes(store_secret::kNonceBytes);
  out += nonce_;
  greeted_ = true;
  return State::waits;
}

StoreDoor::State StoreDoor::take_hello(std::string& in, std::string& out) {
  if (in.size() < kLengthBytes) return State::waits;
  const size_t bytes = body_bytes(in);
  if (bytes > kMaxHandshakeBytes) return refuse(fmt::format("it announced {} bytes to say who it is", bytes));
  if (in.size() < kLengthBytes + bytes) return State::waits;
  if (in.size() > kLengthBytes + bytes) return refuse("it sent more than its name before it was answered");
  const std::string frame = std::move(in);
  in.clear();
  const auto hello = decode_hello(std::string_view(frame).substr(kLengthBytes));
  if (!hello) return refuse("it said nonsense in place of its name");
  const Verdict verdict = judge(*key_, nonce_, *hello);
  out += encode_answer(*key_, verdict, nonce_, hello->nonce);
  rank_ = hello->rank;
  const std::string job = printable(hello->job, kMaxJobIdBytes);
  const std::string claims = fmt::format("rank {} of {}, job \"{}\"", hello->rank, hello->world_size, job);
  switch (verdict) {
    case Verdict::welcome: return State::admitted;
    case Verdict::wrong_secret:
      return refuse(fmt::format("it does not have the secret of job \"{}\"; it says it is {}", key_->id, claims));
    case Verdict::other_job: return refuse(fmt::format("it is {}; this is job \"{}\"", claims, key_->id));
    default: return refuse(fmt::format("it is {}; this job has {} ranks", claims, key_->world_size));
  }
}

}  // namespace caravan
