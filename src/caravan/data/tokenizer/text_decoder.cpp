#include "caravan/data/tokenizer/text_decoder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "caravan/data/tokenizer/byte_alphabet.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

constexpr std::string_view kReplacementCharacter = "\uFFFD";

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::string cleaned(std::string token) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules{{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kRules) {
    if (token.find(from) != std::string::npos) token = replaced(token, from, to);
  }
  return token;
}

/// The byte of "<0x0A>"; -1 for another token.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const auto digit = [&](size_t at) { return static_cast<unsigned char>(token[at]); };
  if (std::isxdigit(digit(3)) == 0 || std::isxdigit(digit(4)) == 0) return -1;
  return std::stoi(std::string(token.substr(3, 2)), nullptr, 16);
}

/// The characters that a strip takes away at an end.
size_t count_marks(std::string_view text, std::string_view mark, size_t most, bool from_end) {
  size_t count = 0;
  while (count < most && (from_end ? text.ends_with(mark) : text.starts_with(mark))) {
    from_end ? text.remove_suffix(mark.size()) : text.remove_prefix(mark.size());
    ++count;
  }
  return count;
}

std::string bytes_of(std::string_view token) {
  return ByteAlphabet::instance().decode(token).value_or(std::string(token));
}

}  // namespace

TextDecoder::TextDecoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {
  bool is_fused = false;
  for (const DecoderStep& step : steps_) {
    is_fused_.push_back(is_fused);
    is_fused = is_fused || step.kind == DecoderStep::fuse || step.kind == DecoderStep::byte_level;
  }
}

std::string TextDecoder::spelling(std::string_view token) const {
  std::string text(token);
  for (size_t i = 0; i < steps_.size() && !is_fused_[i]; ++i) {
    const DecoderStep& step = steps_[i];
    switch (step.kind) {
      case DecoderStep::byte_level: text = bytes_of(text); break;
      case DecoderStep::word_piece:
        text = text.starts_with(step.text) ? text.substr(step.text.size()) : " " + text;
        break;
      case DecoderStep::metaspace: text = replaced(text, step.text, " "); break;
      case DecoderStep::byte_fallback:
        if (const int byte = byte_of(text); byte >= 0) text = std::string(1, static_cast<char>(byte));
        break;
      case DecoderStep::replace:
        if (!step.pattern) text = replaced(text, step.text, step.content);
        break;
      case DecoderStep::bpe: text = replaced(text, step.text, " "); break;
      case DecoderStep::fuse:
      case DecoderStep::strip: break;
    }
  }
  return text;
}

void DecoderRun::put(std::string_view token, std::string& out) {
  if (decoder_.steps_.empty() && std::exchange(has_begun_, true)) out += ' ';
  run(0, std::string(token), out);
}

void DecoderRun::finish(std::string& out) {
  for (size_t index = 0; index < states_.size(); ++index) flush(index, out);
}

std::string DecoderRun::converted(const DecoderStep& step, std::string_view token, bool is_first) {
  switch (step.kind) {
    case DecoderStep::byte_level: return bytes_of(token);
    case DecoderStep::word_piece: {
      std::string text;
      if (!is_first && token.starts_with(step.text)) {
        text = token.substr(step.text.size());
      } else {
        text.append(is_first ? "" : " ").append(token);
      }
      return step.cleans ? cleaned(std::move(text)) : text;
    }
    case DecoderStep::metaspace: return replaced(token, step.text, is_first && !step.keeps_first ? "" : " ");
    case DecoderStep::strip: {
      token.remove_prefix(count_marks(token, step.text, step.start, false) * step.text.size());
      token.remove_suffix(count_marks(token, step.text, step.stop, true) * step.text.size());
      return std::string(token);
    }
    case DecoderStep::replace: {
      if (!step.pattern) return replaced(token, step.text, step.content);
      std::string text;
      size_t done = 0;
      RegexSearch search(*step.pattern, search_, token);
      while (const auto match = search.next()) {
        text.append(token.substr(done, match->begin - done)).append(step.content);
        done = match->end;
      }
      return text.append(token.substr(done));
    }
    default: return std::string(token);
  }
}

void DecoderRun::run(size_t index, std::string token, std::string& out) {
  if (index == states_.size()) {
    out += token;
    return;
  }
  const DecoderStep& step = decoder_.steps_[index];
  State& state = states_[index];
  const bool is_fused = decoder_.is_fused_[index];
  const bool is_first = !std::exchange(state.has_begun, true);
  const bool is_one_character = !step.text.empty() && utf8_step(step.text).length == step.text.size();
  if (step.kind == DecoderStep::fuse || (step.kind == DecoderStep::byte_level && index + 1 == states_.size())) {
    run(index + 1, converted(step, token, is_first), out);
  } else if (is_fused && step.kind == DecoderStep::strip) {
    strip_pieces(index, token, out);
  } else if (step.kind == DecoderStep::byte_level) {
    // Steps behind it take text: a character is passed on when it is complete.
    state.held += bytes_of(token);
    std::string text = take_utf8(state.held, /*is_end=*/false);
    if (!text.empty()) run(index + 1, std::move(text), out);
  } else if (is_fused && !(step.kind == DecoderStep::replace && !step.pattern && is_one_character)) {
    state.held += token;  // to be converted as one token, at the end
  } else if (step.kind == DecoderStep::byte_fallback) {
    byte_fallback(index, std::move(token), out);
  } else if (step.kind == DecoderStep::bpe) {
    // Its suffix is a space, but not at the end of the text.
    std::string last = std::exchange(state.held, std::move(token));
    if (!is_first) run(index + 1, replaced(last, step.text, " "), out);
  } else {
    run(index + 1, converted(step, token, is_first), out);
  }
}

void DecoderRun::flush(size_t index, std::string& out) {
  const DecoderStep& step = decoder_.steps_[index];
  State& state = states_[index];
  if (!state.has_begun) return;
  std::string held = std::move(state.held);
  state.held.clear();
  switch (step.kind) {
    case DecoderStep::byte_fallback:
      if (!decoder_.is_fused_[index]) {
        state.held = std::move(held);
        byte_fallback(index, "", out);
        return;
      }
      if (const int byte = byte_of(held); byte >= 0) {
        held = byte < 0x80 ? std::string(1, static_cast<char>(byte)) : std::string(kReplacementCharacter);
      }
      break;
    case DecoderStep::byte_level: held = take_utf8(held, /*is_end=*/true); break;
    case DecoderStep::strip:
      if (!decoder_.is_fused_[index]) return;
      held.resize(held.size() - count_marks(held, step.text, step.stop, true) * step.text.size());
      break;
    case DecoderStep::bpe: held = replaced(held, step.text, ""); break;
    case DecoderStep::fuse: return;
    default:
      if (decoder_.is_fused_[index]) held = converted(step, held, /*is_first=*/true);
  }
  if (!held.empty()) run(index + 1, std::move(held), out);
}

/// Bytes in a row are text if all of them together are UTF-8, else each is a U+FFFD.
void DecoderRun::byte_fallback(size_t index, std::string token, std::string& out) {
  State& state = states_[index];
  const int byte = byte_of(token);
  if (byte >= 0) {
    state.held.push_back(static_cast<char>(byte));
    return;
  }
  if (!state.held.empty()) {
    const std::string held = std::exchange(state.held, "");
    if (utf8_error(held) == kNoUtf8Error) {
      run(index + 1, held, out);
    } else {
      for (size_t i = 0; i < held.size(); ++i) run(index + 1, std::string(kReplacementCharacter), out);
    }
  }
  if (!token.empty()) run(index + 1, std::move(token), out);
}

/// A strip of a text that comes in pieces. What may be at its end is held back.
void DecoderRun::strip_pieces(size_t index, std::string_view piece, std::string& out) {
  const DecoderStep& step = decoder_.steps_[index];
  State& state = states_[index];
  if (!state.is_cut) {
    const size_t count = count_marks(piece, step.text, step.start - state.num_cut, false);
    piece.remove_prefix(count * step.text.size());
    state.num_cut += count;
    state.is_cut = !piece.empty() || state.num_cut == step.start;
  }
  std::string text = std::exchange(state.held, "").append(piece);
  const size_t held = count_marks(text, step.text, step.stop, true) * step.text.size();
  state.held = text.substr(text.size() - held);
  text.resize(text.size() - held);
  if (!text.empty()) run(index + 1, std::move(text), out);
}

}  // namespace caravan
