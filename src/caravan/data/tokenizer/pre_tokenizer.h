#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/unicode/regex.h"

namespace caravan {

/// What a Split does with its matches, named as in tokenizer.json.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// One stage of splitting text into words: prepends a space if there is none, then splits by a pattern. Both optional.
struct PreTokenizerStage {
  bool add_prefix_space = false;
  std::optional<Regex> pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool is_inverted = false;  ///< the text between the matches counts as the matches
};

/// Receives the words of a text one by one.
class WordSink {
 public:
  virtual void word(std::string_view word) = 0;

 protected:
  ~WordSink() = default;
};

/// Splits text into words; BPE merges only within a word. Each stage splits the pieces of the previous stage.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStage> stages) : stages_(std::move(stages)) {}

  /// GPT-2's pattern: contractions, letters, numbers, others, each with at most one leading space, and white space.
  static constexpr std::string_view kGpt2Pattern =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  static PreTokenizer gpt2();

  /// Scratch memory of `split`, one per thread.
  struct Scratch {
    std::vector<std::unique_ptr<RegexScratch>> searches;  // one per stage: the searches are nested
    std::vector<std::string> prefixed;
  };

  /// Passes the words of `text`, well-formed UTF-8, to `sink` from left to right. No word is empty.
  void split(std::string_view text, Scratch& scratch, WordSink& sink) const;

 private:
  void run_stage(size_t stage, std::string_view text, Scratch& scratch, WordSink& sink) const;
  std::vector<PreTokenizerStage> stages_;
};

}  // namespace caravan
