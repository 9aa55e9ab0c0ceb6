#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {

TextStream::TextStream(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skips_special_(skip_special_tokens) {}

std::string TextStream::put(int32_t id) {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (skips_special_ && tokenizer_.is_special(id)) return "";
  pending_ += bytes;
  return take_complete(false);
}

std::string TextStream::finish() { return take_complete(true); }

std::string TextStream::take_complete(bool is_end) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::incomplete && !is_end) break;
    if (step.kind == Utf8Step::complete) {
      out += rest.substr(0, step.length);
    } else {
      append_utf8(out, kReplacement);
    }
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

}  // namespace caravan
