#include "caravan/data/tokenizer/tokenizer_json.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

normalizing::BertStep read_bert(const JsonReader& json) {
  json.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lowers = json["lowercase"].boolean();
  return {.cleans = json["clean_text"].boolean(),
          .separates_chinese = json["handle_chinese_chars"].boolean(),
          .strips_accents = json["strip_accents"].boolean_or(lowers),
          .lowers = lowers};
}

std::shared_ptr<const Charsmap> read_charsmap(const JsonReader& json) {
  json.allow_only({"type", "precompiled_charsmap"});
  const JsonReader text = json["precompiled_charsmap"];
  std::optional<std::string> binary = decode_base64(text.string());
  std::optional<Charsmap> map = binary ? Charsmap::parse(*binary) : std::nullopt;
  if (!map) text.refuse("is not the table of a SentencePiece model in base64", "get the file again: it is damaged");
  return std::make_shared<const Charsmap>(std::move(*map));
}

void read_steps(const JsonReader& json, std::vector<NormalizerStep>& steps) {
  switch (json["type"].choice({"NFC", "NFD", "NFKC", "NFKD", "Sequence", "Lowercase", "Strip", "StripAccents",
                               "Prepend", "Replace", "BertNormalizer", "Precompiled", "Nmt", "ByteLevel"})) {
    case 0: steps.emplace_back(NormalForm::nfc); break;
    case 1: steps.emplace_back(NormalForm::nfd); break;
    case 2: steps.emplace_back(NormalForm::nfkc); break;
    case 3: steps.emplace_back(NormalForm::nfkd); break;
    case 4: {
      json.allow_only({"type", "normalizers"});
      const JsonReader sequence = json["normalizers"];
      for (size_t i = 0; i < sequence.size(); ++i) read_steps(sequence.element(i), steps);
      return;
    }
    case 5: steps.emplace_back(normalizing::LowercaseStep{}); break;
    case 6:
      json.allow_only({"type", "strip_left", "strip_right"});
      steps.emplace_back(normalizing::StripStep{json["strip_left"].boolean(), json["strip_right"].boolean()});
      return;
    case 7: steps.emplace_back(normalizing::StripAccentsStep{}); break;
    case 8:
      json.allow_only({"type", "prepend"});
      steps.emplace_back(normalizing::PrependStep{json["prepend"].string()});
      return;
    case 9: {
      json.allow_only({"type", "pattern", "content"});
      auto [pattern, literal] = read_replaced(json["pattern"]);
      steps.emplace_back(normalizing::ReplaceStep{std::move(pattern), std::move(literal), json["content"].string()});
      return;
    }
    case 10: steps.emplace_back(read_bert(json)); return;
    case 11: steps.emplace_back(read_charsmap(json)); return;
    case 12: steps.emplace_back(normalizing::NmtStep{}); break;
    default: steps.emplace_back(normalizing::ByteLevelStep{}); break;
  }
  json.allow_only({"type"});
}

}  // namespace

Normalizer read_normalizer(const JsonReader& json) {
  std::vector<NormalizerStep> steps;
  if (!json.is_null()) read_steps(json, steps);
  return Normalizer(std::move(steps));
}

std::pair<std::optional<Regex>, std::string> read_replaced(const JsonReader& json) {
  json.allow_only({"Regex", "String"});
  if (json.has("Regex")) return {Regex(json["Regex"].string(), json["Regex"].path()), ""};
  const JsonReader literal = json["String"];
  if (literal.string().empty()) literal.refuse("is empty", "give the text to replace");
  return {std::nullopt, literal.string()};
}

Regex read_pattern(const JsonReader& json) {
  auto [pattern, literal] = read_replaced(json);
  return pattern ? std::move(*pattern) : Regex::literal(literal, json["String"].path());
}

std::string read_character(const JsonReader& json) {
  const std::string& text = json.string();
  if (text.empty() || utf8_step(text).length != text.size()) json.refuse("is not one character", "give one");
  return text;
}

Metaspace read_metaspace_settings(const JsonReader& json) {
  json.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  Metaspace metaspace;
  metaspace.mark = read_character(json["replacement"]);
  const JsonReader scheme = json["prepend_scheme"];
  if (!scheme.is_null()) {
    constexpr PrependScheme kSchemes[] = {PrependScheme::always, PrependScheme::first, PrependScheme::never};
    metaspace.scheme = kSchemes[scheme.choice({"always", "first", "never"})];
  }
  // Files of older versions say add_prefix_space alone.
  const JsonReader adds = json["add_prefix_space"];
  if (!adds.boolean_or(true)) {
    if (!scheme.is_null() && metaspace.scheme != PrependScheme::never) {
      adds.refuse("is false, which contradicts prepend_scheme", "remove add_prefix_space");
    }
    metaspace.scheme = PrependScheme::never;
  }
  metaspace.splits = json["split"].boolean_or(true);
  return metaspace;
}

}  // namespace caravan
