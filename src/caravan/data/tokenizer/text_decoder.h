#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/unicode/regex.h"

namespace caravan {

/// One step of a decoder, named as in tokenizer.json. It turns a list of tokens into another.
struct DecoderStep {
  enum Kind : uint8_t { byte_level, word_piece, metaspace, byte_fallback, fuse, strip, replace, bpe };
  Kind kind;
  /// Prefix of word_piece, mark of metaspace, content of strip, suffix of bpe, literal of replace.
  std::string text = {};
  std::string content = {};           ///< of replace
  std::optional<Regex> pattern = {};  ///< of replace, instead of a literal
  bool cleans = false;                ///< word_piece: takes away spaces before punctuation
  bool keeps_first = false;           ///< metaspace: the mark of the first token is a space too
  size_t start = 0;                   ///< strip: characters to take away at most
  size_t stop = 0;
};

/// How token texts become text. Immutable.
class TextDecoder {
 public:
  /// A space between any two tokens: what a file without decoder means.
  TextDecoder() = default;
  explicit TextDecoder(std::vector<DecoderStep> steps);

  /// The text is the bytes of the tokens, one after the other.
  bool is_byte_level() const noexcept { return steps_.size() == 1 && steps_[0].kind == DecoderStep::byte_level; }
  /// The bytes that a token stands for in the middle of a text: " the" for "▁the".
  std::string spelling(std::string_view token) const;

 private:
  friend class DecoderRun;
  std::vector<DecoderStep> steps_;
  std::vector<bool> is_fused_;  // by step: all its input is one token, which comes in pieces
};

/// Decodes the tokens of one text as they come. A piece of text appears as soon as no later token can change it.
class DecoderRun {
 public:
  explicit DecoderRun(const TextDecoder& decoder) : decoder_(decoder), states_(decoder.steps_.size()) {}

  void put(std::string_view token, std::string& out);
  /// Appends what was held back.
  void finish(std::string& out);

 private:
  struct State {
    bool has_begun = false;
    std::string held;
    size_t num_held = 0;  // tokens
    size_t num_cut = 0;   // characters that a strip has taken away at the start
    bool is_cut = false;  // it takes no more
  };
  void run(size_t index, std::string token, std::string& out);
  void flush(size_t index, std::string& out);
  void byte_fallback(size_t index, std::string token, std::string& out);
  void strip_pieces(size_t index, std::string_view piece, std::string& out);
  std::string converted(const DecoderStep& step, std::string_view token, bool is_first);

  const TextDecoder& decoder_;
  std::vector<State> states_;
  RegexScratch search_;
  bool has_begun_ = false;
};

}  // namespace caravan
