#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/regex.h"

namespace caravan {

/// What happens to the matches of a Split, by the names of tokenizer.json.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// One step of cutting text into words: a space in front, if none is there, then a cut by a pattern. Both optional.
struct PreTokenizerStage {
  bool add_prefix_space = false;
  std::optional<Regex> pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool is_inverted = false;  ///< what lies between the matches counts as the matches
};

/// Takes the words of a text one by one.
class WordSink {
 public:
  virtual void word(std::string_view word) = 0;

 protected:
  ~WordSink() = default;
};

/// Cuts text into the words that BPE merges inside of: every stage cuts each piece of the stage before it.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStage> stages) : stages_(std::move(stages)) {}

  /// GPT-2's: contractions, letters, numbers, others, each with at most one space in front, and white space.
  static constexpr std::string_view kGpt2Pattern =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  static PreTokenizer gpt2();

  /// Memory of `split`, one per thread.
  struct Scratch {
    std::vector<std::unique_ptr<RegexScratch>> searches;  // one per stage: stages are searched within each other
    std::vector<std::string> prefixed;
  };

  /// Hands the words of `text`, well-formed UTF-8, to `sink` from left to right. None is empty.
  void split(std::string_view text, Scratch& scratch, WordSink& sink) const;

 private:
  void run_stage(size_t stage, std::string_view text, Scratch& scratch, WordSink& sink) const;
  std::vector<PreTokenizerStage> stages_;
};

}  // namespace caravan
