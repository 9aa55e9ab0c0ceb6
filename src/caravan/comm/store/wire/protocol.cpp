#include "caravan/comm/store/wire/protocol.h"

#include "caravan/comm/store/wire/bytes.h"

namespace caravan::store_protocol {
namespace {

constexpr std::string_view kMagic = "CRVN";

std::string frame(std::string_view head, std::string_view key, std::string_view value) {
  std::string out;
  const size_t bytes = head.size() + key.size() + value.size();
  out.reserve(kLengthBytes + bytes);
  append(out, static_cast<uint32_t>(bytes));
  return out.append(head).append(key).append(value);
}

}  // namespace

std::string greeting() {
  std::string out(kMagic);
  append(out, kVersion);
  append(out, uint16_t{0});
  return out;
}

std::optional<uint16_t> greeting_version(std::string_view bytes) {
  if (bytes.size() != kGreetingBytes || bytes.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  return read<uint16_t>(bytes.substr(kMagic.size()));
}

std::string encode(const Request& request) {
  std::string head(1, static_cast<char>(request.verb));
  append(head, static_cast<uint32_t>(request.key.size()));
  return frame(head, request.key, request.value);
}

std::string encode(const Reply& reply) {
  return frame(std::string(1, static_cast<char>(reply.status)), reply.value, {});
}

size_t body_bytes(std::string_view length) { return read<uint32_t>(length); }

std::optional<Request> decode_request(std::string_view body) {
  constexpr size_t kHead = 5;
  if (body.size() < kHead) return std::nullopt;
  const auto verb = static_cast<uint8_t>(body[0]);
  const size_t key_bytes = read<uint32_t>(body.substr(1));
  if (verb < static_cast<uint8_t>(Verb::set) || verb > static_cast<uint8_t>(Verb::remove)) return std::nullopt;
  if (key_bytes > kMaxKeyBytes || key_bytes > body.size() - kHead) return std::nullopt;
  const Request request{static_cast<Verb>(verb), body.substr(kHead, key_bytes), body.substr(kHead + key_bytes)};
  if (request.value.size() > kMaxValueBytes) return std::nullopt;
  const bool takes_number = request.verb == Verb::add || request.verb == Verb::get;
  if (takes_number && request.value.size() != sizeof(int64_t)) return std::nullopt;
  return request;
}

std::optional<Reply> decode_reply(std::string_view body) {
  if (body.empty() || static_cast<uint8_t>(body[0]) > static_cast<uint8_t>(Status::timed_out)) return std::nullopt;
  return Reply{static_cast<Status>(body[0]), body.substr(1)};
}

std::string encode_number(int64_t number) {
  std::string out;
  append(out, number);
  return out;
}

int64_t decode_number(std::string_view bytes) { return read<int64_t>(bytes); }

}  // namespace caravan::store_protocol
