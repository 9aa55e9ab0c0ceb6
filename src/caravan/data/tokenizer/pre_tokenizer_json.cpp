#include <fmt/format.h>

#include "caravan/data/tokenizer/tokenizer_json.h"
#include "caravan/data/unicode/character_sets.h"
#include "caravan/data/unicode/regex_dialect.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

PreTokenizerStage stage_of(Regex pattern, SplitBehavior behavior, bool is_inverted = false) {
  PreTokenizerStage stage;
  stage.pattern.emplace(std::move(pattern));
  stage.behavior = behavior;
  stage.is_inverted = is_inverted;
  return stage;
}

PreTokenizerStage white_space_stage(const JsonReader& json) {
  return stage_of(Regex::pcre2(fmt::format("[{}]", white_space_members()), json.path()), SplitBehavior::removed);
}

SplitBehavior read_behavior(const JsonReader& json) {
  return static_cast<SplitBehavior>(
      json.choice({"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}));
}

PreTokenizerStage read_byte_level(const JsonReader& json) {
  json.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // trim_offsets: offsets, never ids
  PreTokenizerStage stage;
  if (json["add_prefix_space"].boolean()) stage.scheme = PrependScheme::always;
  if (json["use_regex"].boolean_or(true)) stage.pattern.emplace(PreTokenizer::kGpt2Pattern, json.path());
  stage.maps_bytes = true;
  return stage;
}

PreTokenizerStage read_split(const JsonReader& json) {
  json.allow_only({"type", "pattern", "behavior", "invert"});
  return stage_of(read_pattern(json["pattern"]), read_behavior(json["behavior"]), json["invert"].boolean_or(false));
}

PreTokenizerStage read_digits(const JsonReader& json) {
  json.allow_only({"type", "individual_digits"});
  // Rust's is_numeric: N of Unicode 17.0, which is newer than what unicode_additions() has.
  Regex digits = Regex::pcre2(
      fmt::format("[{}\\x{{11DE0}}-\\x{{11DE9}}\\x{{16FF4}}-\\x{{16FF6}}]", category_members("N")), json.path());
  return stage_of(std::move(digits),
                  json["individual_digits"].boolean() ? SplitBehavior::isolated : SplitBehavior::contiguous);
}

PreTokenizerStage read_punctuation(const JsonReader& json) {
  json.allow_only({"type", "behavior"});
  const JsonReader behavior = json["behavior"];
  return stage_of(Regex::pcre2(class_of(punctuation()), json.path()),
                  behavior.is_null() ? SplitBehavior::isolated : read_behavior(behavior));
}

PreTokenizerStage read_whitespace(const JsonReader& json) {
  json.allow_only({"type"});
  const std::string word = word_members();
  return stage_of(Regex::pcre2(fmt::format("[{}]+|[^{}{}]+", word, word, white_space_members()), json.path()),
                  SplitBehavior::removed, /*is_inverted=*/true);
}

PreTokenizerStage read_delimiter(const JsonReader& json) {
  json.allow_only({"type", "delimiter"});
  const JsonReader delimiter = json["delimiter"];
  return stage_of(Regex::literal(read_character(delimiter), delimiter.path()), SplitBehavior::removed);
}

PreTokenizerStage read_metaspace(const JsonReader& json) {
  const Metaspace metaspace = read_metaspace_settings(json);
  PreTokenizerStage stage;
  stage.mark = metaspace.mark;
  stage.replaces_spaces = true;
  stage.scheme = metaspace.scheme;
  if (metaspace.splits) stage.pattern.emplace(Regex::literal(stage.mark, json.path()));
  stage.behavior = SplitBehavior::merged_with_next;
  return stage;
}

void read_stages(const JsonReader& json, std::vector<PreTokenizerStage>& stages) {
  switch (json["type"].choice({"ByteLevel", "Split", "Digits", "Sequence", "BertPreTokenizer", "Metaspace",
                               "Whitespace", "WhitespaceSplit", "Punctuation", "CharDelimiterSplit"})) {
    case 0: stages.push_back(read_byte_level(json)); return;
    case 1: stages.push_back(read_split(json)); return;
    case 2: stages.push_back(read_digits(json)); return;
    case 3: break;
    case 4:
      json.allow_only({"type"});
      stages.push_back(white_space_stage(json));
      stages.push_back(stage_of(Regex::pcre2(class_of(punctuation()), json.path()), SplitBehavior::isolated));
      return;
    case 5: stages.push_back(read_metaspace(json)); return;
    case 6: stages.push_back(read_whitespace(json)); return;
    case 7:
      json.allow_only({"type"});
      stages.push_back(white_space_stage(json));
      return;
    case 8: stages.push_back(read_punctuation(json)); return;
    default: stages.push_back(read_delimiter(json)); return;
  }
  json.allow_only({"type", "pretokenizers"});
  const JsonReader sequence = json["pretokenizers"];
  for (size_t i = 0; i < sequence.size(); ++i) read_stages(sequence.element(i), stages);
}

}  // namespace

PreTokenizer read_pre_tokenizer(const JsonReader& json) {
  std::vector<PreTokenizerStage> stages;
  if (!json.is_null()) read_stages(json, stages);
  return PreTokenizer(std::move(stages));
}

}  // namespace caravan
