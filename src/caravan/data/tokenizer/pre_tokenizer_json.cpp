#include "caravan/data/tokenizer/tokenizer_json.h"

namespace caravan {
namespace {

PreTokenizerStage read_byte_level(const JsonReader& json) {
  json.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // trim_offsets: offsets, never ids
  PreTokenizerStage stage;
  stage.add_prefix_space = json["add_prefix_space"].boolean();
  if (json["use_regex"].boolean_or(true)) stage.pattern.emplace(PreTokenizer::kGpt2Pattern, json.path());
  return stage;
}

PreTokenizerStage read_split(const JsonReader& json) {
  json.allow_only({"type", "pattern", "behavior", "invert"});
  PreTokenizerStage stage;
  const JsonReader pattern = json["pattern"];
  pattern.allow_only({"Regex", "String"});
  if (pattern.has("Regex")) {
    stage.pattern.emplace(pattern["Regex"].string(), pattern["Regex"].path());
  } else {
    stage.pattern.emplace(Regex::literal(pattern["String"].string(), pattern["String"].path()));
  }
  const JsonReader behavior = json["behavior"];
  stage.behavior = static_cast<SplitBehavior>(
      behavior.choice({"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}));
  stage.is_inverted = json["invert"].boolean_or(false);
  return stage;
}

PreTokenizerStage read_digits(const JsonReader& json) {
  json.allow_only({"type", "individual_digits"});
  PreTokenizerStage stage;
  stage.pattern.emplace("\\p{N}", json.path());
  stage.behavior = json["individual_digits"].boolean() ? SplitBehavior::isolated : SplitBehavior::contiguous;
  return stage;
}

PreTokenizerStage read_stage(const JsonReader& json, bool is_last) {
  switch (json["type"].choice({"ByteLevel", "Split", "Digits"})) {
    case 0:
      if (!is_last) json.refuse("is a ByteLevel that is followed by more", "make ByteLevel the last of the Sequence");
      return read_byte_level(json);
    case 1: return read_split(json);
    default: return read_digits(json);
  }
}

}  // namespace

PreTokenizer read_pre_tokenizer(const JsonReader& json) {
  if (json.is_null()) json.refuse("is null", "supported: ByteLevel, or a Sequence that ends with it");
  std::vector<PreTokenizerStage> stages;
  if (json["type"].choice({"ByteLevel", "Sequence"}) == 0) {
    stages.push_back(read_stage(json, true));
    return PreTokenizer(std::move(stages));
  }
  json.allow_only({"type", "pretokenizers"});
  const JsonReader sequence = json["pretokenizers"];
  const size_t count = sequence.size();
  for (size_t i = 0; i < count; ++i) stages.push_back(read_stage(sequence.element(i), i + 1 == count));
  if (count == 0 || sequence.element(count - 1)["type"].string() != "ByteLevel") {
    json.refuse("does not end with ByteLevel", "supported: byte-level BPE only");
  }
  return PreTokenizer(std::move(stages));
}

}  // namespace caravan
