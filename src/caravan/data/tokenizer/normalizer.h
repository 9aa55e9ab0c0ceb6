#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "caravan/data/tokenizer/charsmap.h"
#include "caravan/data/unicode/normal_form.h"
#include "caravan/data/unicode/regex.h"

namespace caravan {

/// A text on its way to words.
struct NormalizedText {
  std::string_view text = {};
  /// How many of its bytes come from the first character of the whole text: 0 behind an added token, or if a normalizer
  /// has removed that character. A Metaspace with prepend_scheme "first" asks for it.
  size_t head = 0;
};

/// The steps of a normalizer, named as in tokenizer.json.
namespace normalizing {
struct LowercaseStep {};
struct StripStep {
  bool left;
  bool right;
};
struct StripAccentsStep {};
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::optional<Regex> pattern;  ///< nullopt: `literal`
  std::string literal;
  std::string content;
};
struct BertStep {
  bool cleans;
  bool separates_chinese;
  bool strips_accents;
  bool lowers;
};
struct NmtStep {};
struct ByteLevelStep {};
}  // namespace normalizing

using NormalizerStep =
    std::variant<NormalForm, normalizing::LowercaseStep, normalizing::StripStep, normalizing::StripAccentsStep,
                 normalizing::PrependStep, normalizing::ReplaceStep, normalizing::BertStep,
                 std::shared_ptr<const Charsmap>, normalizing::NmtStep, normalizing::ByteLevelStep>;

/// Changes a text before it is split into words.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  /// Scratch memory, one per thread.
  struct Scratch {
    std::string text;
    std::string next;
    RegexScratch search;
  };
  /// A view of the text itself, or of `scratch`. `text` is well-formed UTF-8.
  NormalizedText apply(NormalizedText text, Scratch& scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace caravan
