#include "caravan/data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max() - 1;

using Vocabulary = std::unordered_map<std::string_view, int32_t>;  // the keys point into the document

nlohmann::json parse(std::string_view json, std::string_view file) {
  check_json_depth(json, file, "tokenizer");
  nlohmann::json value;
  JsonFault fault;
  if (parse_json(json, value, fault)) return value;
  throw DataError({.op = "tokenizer",
                   .subject = std::string(file),
                   .fact = fault.fact,
                   .action = "name a tokenizer.json as Hugging Face's `tokenizers` writes it"});
}

bool is_nfc(const JsonReader& json) {
  if (json.is_null()) return false;
  if (json["type"].choice({"NFC", "Sequence"}) == 0) {
    json.allow_only({"type"});
    return true;
  }
  json.allow_only({"type", "normalizers"});
  const JsonReader sequence = json["normalizers"];
  bool found = false;
  for (size_t i = 0; i < sequence.size(); ++i) found = is_nfc(sequence.element(i)) || found;
  return found;
}

/// Fills parts.tokens and returns the ids by token.
Vocabulary read_vocabulary(const JsonReader& json, BpeModel::Parts& parts) {
  const size_t count = json.size();
  // Ids may have gaps, but a single huge id must not determine how much is allocated.
  const int64_t largest = std::min<int64_t>(kLargestId, 2 * static_cast<int64_t>(count) + 1024);
  Vocabulary ids;
  ids.reserve(count);
  if (count > 0 && !json.value().is_object()) json.refuse("is a list", "give an object: token to id");
  for (const auto& [token, value] : json.value().items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest)) {
      json.refuse(fmt::format("gives \"{}\" the id {}", token, value.dump()),
                  fmt::format("ids of {} tokens are whole numbers from 0 to {}", count, largest));
    }
    const auto id = value.get<size_t>();
    if (id >= parts.tokens.size()) parts.tokens.resize(id + 1);
    if (parts.tokens[id]) {
      json.refuse(fmt::format("gives \"{}\" and \"{}\" the same id {}", *parts.tokens[id], token, id),
                  "give each token its own id");
    }
    parts.tokens[id] = token;
    ids.emplace(token, static_cast<int32_t>(id));
  }
  return ids;
}

/// The two tokens of an entry: "a b", or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_pair(const JsonReader& merges, size_t index) {
  const nlohmann::json& entry = merges.value()[index];
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  if (entry.is_string()) {
    const std::string_view text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  merges.element(index).refuse("is not a merge", "give two tokens: \"a b\" or [\"a\", \"b\"]");
}

void read_merges(const JsonReader& json, const Vocabulary& ids, BpeModel::Parts& parts) {
  const size_t count = json.size();
  if (count > 0 && !json.value().is_array()) json.refuse("is an object", "give a list");
  parts.merges.reserve(count);
  std::string result;
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& entry = json.value()[i];
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = merge_pair(json, i);
    const auto id = [&](std::string_view token) {
      const auto found = ids.find(token);
      if (found == ids.end()) {
        json.element(i).refuse(fmt::format("needs the token \"{}\", which model.vocab lacks", token),
                               "both tokens of a merge and their union must be in the vocabulary");
      }
      return found->second;
    };
    result.assign(left).append(right);
    parts.merges.push_back({id(left), id(right), id(result)});
  }
}

BpeModel read_model(const JsonReader& json) {
  if (json.is_null()) json.refuse("is missing", "name a tokenizer.json as Hugging Face's `tokenizers` writes it");
  if (json.has("type")) json["type"].choice({"BPE"});
  json.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges", "vocab", "merges"});
  const JsonReader dropout = json["dropout"];
  if (!dropout.is_null() && !(dropout.value().is_number() && dropout.value().get<double>() == 0)) {
    dropout.refuse("makes the ids random", "supported: null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonReader affix = json[key];
    if (!affix.is_null() && !affix.string().empty()) affix.refuse("is not empty", "supported: null");
  }
  BpeModel::Parts parts;
  const Vocabulary ids = read_vocabulary(json["vocab"], parts);
  read_merges(json["merges"], ids, parts);
  parts.ignores_merges = json["ignore_merges"].boolean_or(false);
  parts.fuses_unknown = json["fuse_unk"].boolean_or(false);
  const JsonReader unknown = json["unk_token"];
  if (!unknown.is_null()) {
    const auto found = ids.find(unknown.string());
    if (found != ids.end()) parts.unknown_id = found->second;
  }
  const bool has_unknown_id = parts.unknown_id.has_value();
  BpeModel model(std::move(parts));
  if (!model.has_all_bytes()) {
    if (json["byte_fallback"].boolean_or(false)) {
      json["byte_fallback"].refuse("is true, and the vocabulary lacks some of the 256 bytes", "supported: false");
    }
    if (!unknown.is_null() && !has_unknown_id) unknown.refuse("is not in the vocabulary", "add it there");
  }
  return model;
}

std::vector<AddedToken> read_added_tokens(const JsonReader& json, const BpeModel& model, int64_t model_count) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  std::unordered_map<std::string, int32_t> seen;
  int64_t next = model_count;
  for (size_t i = 0; i < json.size(); ++i) {
    const JsonReader entry = json.element(i);
    entry.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<int32_t>(entry["id"].integer(0, kLargestId));
    token.content = entry["content"].string();
    token.is_single_word = entry["single_word"].boolean_or(false);
    token.strips_left = entry["lstrip"].boolean_or(false);
    token.strips_right = entry["rstrip"].boolean_or(false);
    token.is_special = entry["special"].boolean_or(false);
    token.is_normalized = entry["normalized"].boolean_or(!token.is_special);
    if (token.content.empty()) entry["content"].refuse("is empty", "remove the entry");
    if (!seen.emplace(token.content, token.id).second) entry["content"].refuse("occurs twice", "remove one");
    // `tokenizers` assigns the ids itself: those of the model, else the next free ones. A file that disagrees is
    // ambiguous.
    const std::optional<int32_t> in_model = model.find(token.content);
    const int64_t expected = in_model ? *in_model : next;
    if (token.id != expected) {
      entry["id"].refuse(fmt::format("is {}, but \"{}\" {} {}", token.id, token.content,
                                     in_model ? "has in model.vocab the id" : "comes after all others, at", expected),
                         fmt::format("write {}", expected));
    }
    if (!in_model && !model.bytes(token.id).empty())
      entry["id"].refuse("is also in model.vocab", "number model.vocab without gaps");
    next = std::max<int64_t>(next, token.id >= model_count ? token.id + 1 : model_count);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void read_template(const JsonReader& json, TokenizerParts& parts) {
  json.allow_only(
      {"type", "single", "pair", "special_tokens"});  // "pair" is for two texts at once, which is not used here
  const JsonReader single = json["single"];
  bool is_behind_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonReader piece = single.element(i);
    piece.allow_only({"SpecialToken", "Sequence"});
    if (piece.has("Sequence")) {
      piece["Sequence"]["id"].choice({"A"});
      if (is_behind_text) piece.refuse("is the text a second time", "supported: once");
      is_behind_text = true;
      continue;
    }
    const JsonReader token = json["special_tokens"][piece["SpecialToken"]["id"].string()];
    if (token.is_null()) piece.refuse("names a token that special_tokens lacks", "add it there");
    const JsonReader ids = token["ids"];
    for (size_t k = 0; k < ids.size(); ++k) {
      (is_behind_text ? parts.suffix : parts.prefix)
          .push_back(static_cast<int32_t>(ids.element(k).integer(0, kLargestId)));
    }
  }
  if (!is_behind_text) single.refuse("lacks the text itself, Sequence A", "add it");
}

void read_post_processor(const JsonReader& json, TokenizerParts& parts) {
  if (json.is_null()) return;
  switch (json["type"].choice({"ByteLevel", "TemplateProcessing", "Sequence"})) {
    case 0: json.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"}); return;  // offsets only
    case 1:
      if (!parts.prefix.empty() || !parts.suffix.empty()) json.refuse("is a second template", "supported: one");
      read_template(json, parts);
      return;
    default: break;
  }
  json.allow_only({"type", "processors"});
  const JsonReader sequence = json["processors"];
  for (size_t i = 0; i < sequence.size(); ++i) read_post_processor(sequence.element(i), parts);
}

void check_ids_exist(const JsonReader& json, const TokenizerParts& parts) {
  int64_t size = parts.model.size();
  for (const AddedToken& token : parts.added_tokens) size = std::max<int64_t>(size, token.id + 1);
  for (const auto* ids : {&parts.prefix, &parts.suffix}) {
    for (const int32_t id : *ids) {
      if (id >= size) json.refuse(fmt::format("adds the id {} of a vocabulary of {}", id, size), "correct the id");
    }
  }
}

}  // namespace

TokenizerParts read_tokenizer_json(std::string_view text, std::string_view file) {
  const nlohmann::json document = parse(text, file);
  const JsonReader json(document, "", file, "tokenizer");
  if (!json.has("model")) {
    json.refuse("has no \"model\"", "name a tokenizer.json as Hugging Face's `tokenizers` writes it");
  }
  json.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  if (json.has("version")) json["version"].choice({"1.0"});
  for (const char* key : {"truncation", "padding"}) {
    if (!json[key].is_null()) json[key].refuse("would change the number of tokens", "set it to null");
  }
  TokenizerParts parts{.is_nfc = is_nfc(json["normalizer"]),
                       .pre_tokenizer = read_pre_tokenizer(json["pre_tokenizer"]),
                       .model = read_model(json["model"]),
                       .added_tokens = {},
                       .prefix = {},
                       .suffix = {}};
  parts.added_tokens =
      read_added_tokens(json["added_tokens"], parts.model, static_cast<int64_t>(json["model"]["vocab"].size()));
  read_post_processor(json["post_processor"], parts);
  check_ids_exist(json["post_processor"], parts);
  if (json["decoder"].is_null()) json["decoder"].refuse("is null", "supported: ByteLevel");
  json["decoder"]["type"].choice({"ByteLevel"});
  return parts;
}

}  // namespace caravan
