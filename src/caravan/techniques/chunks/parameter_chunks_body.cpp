#include "caravan/base/text.h"
#include "caravan/techniques/chunks/chunks.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

int64_t bytes_of(const std::string& text) { return text == "auto" ? 0 : parse_bytes(text).value_or(0); }

}  // namespace

void parameter_chunks_body(Strategy& strategy, Module&, const Setting& setting) {
  if (setting.text("size") == "none") return;
  ChunkOptions options{.bytes = bytes_of(setting.text("size")), .device_bytes = bytes_of(setting.text("device"))};
  for (const ChunkPolicy policy : {ChunkPolicy::recorded, ChunkPolicy::latest, ChunkPolicy::lru}) {
    if (name(policy) == setting.text("policy")) options.policy = policy;
  }
  add_chunks(strategy, options);
}

}  // namespace caravan
