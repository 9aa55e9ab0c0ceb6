#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/tokenizer/normalizer.h"
#include "caravan/data/unicode/regex.h"

namespace caravan {

/// What a Split does with its matches, named as in tokenizer.json.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// Where a stage prepends its mark, unless it is there already: nowhere, to each piece, or to the one that begins the
/// text.
enum class PrependScheme : uint8_t { never, always, first };

/// One stage of splitting text into words: replaces spaces, prepends, splits by a pattern, and maps bytes to the
/// byte-level alphabet. All optional.
struct PreTokenizerStage {
  std::string mark = " ";        ///< what is prepended
  bool replaces_spaces = false;  ///< by the mark
  PrependScheme scheme = PrependScheme::never;
  std::optional<Regex> pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool is_inverted = false;  ///< the text between the matches counts as the matches
  bool maps_bytes = false;
};

/// Receives the words of a text one by one.
class WordSink {
 public:
  virtual void word(std::string_view word) = 0;

 protected:
  ~WordSink() = default;
};

/// Splits text into words; a model encodes each on its own. Each stage splits the pieces of the previous stage.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStage> stages) : stages_(std::move(stages)) {}

  /// Whether the last stage maps bytes to the byte-level alphabet.
  bool ends_with_byte_level() const noexcept { return !stages_.empty() && stages_.back().maps_bytes; }
  /// For a model that takes bytes: what the last stage would map, it leaves as it is.
  void leave_bytes();

  /// GPT-2's pattern: contractions, letters, numbers, others, each with at most one leading space, and white space.
  static constexpr std::string_view kGpt2Pattern =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  static PreTokenizer gpt2();

  /// Scratch memory of `split`, one per thread.
  struct Scratch {
    std::vector<std::unique_ptr<RegexScratch>> searches;  // one per stage: the searches are nested
    std::vector<std::string> changed;
    std::vector<std::string> mapped;
  };

  /// Passes the words of `text`, well-formed UTF-8, to `sink` from left to right. No word is empty.
  void split(NormalizedText text, Scratch& scratch, WordSink& sink) const;

 private:
  void run_stage(size_t stage, NormalizedText text, Scratch& scratch, WordSink& sink) const;
  std::vector<PreTokenizerStage> stages_;
};

}  // namespace caravan
