#include "caravan/data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"

namespace caravan {
namespace {

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

std::vector<AddedToken> read_added_tokens(const JsonReader& json, const TokenModel& model, int64_t model_count) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  std::unordered_map<std::string, int32_t> seen;
  int64_t next = model_count;
  for (size_t i = 0; i < json.size(); ++i) {
    const JsonReader entry = json.element(i);
    entry.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<int32_t>(entry["id"].integer(0, kLargestTokenId));
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
    if (!in_model && !model.token(token.id).empty())
      entry["id"].refuse("is also in model.vocab", "number model.vocab without gaps");
    next = std::max<int64_t>(next, token.id >= model_count ? token.id + 1 : model_count);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// How long a call makes its results is not part of the tokenizer here: `transformers`, too, takes these settings of
/// the file away before each call, and applies those of the call.
void check_lengths(const JsonReader& json) {
  for (const char* key : {"truncation", "padding"}) {
    if (!json[key].is_null() && !json[key].value().is_object()) json[key].refuse("is not an object", "set it to null");
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
  check_lengths(json);
  TokenizerParts parts;
  parts.normalizer = read_normalizer(json["normalizer"]);
  parts.pre_tokenizer = read_pre_tokenizer(json["pre_tokenizer"]);
  parts.model = read_model(json["model"], parts.pre_tokenizer);
  parts.added_tokens =
      read_added_tokens(json["added_tokens"], *parts.model, static_cast<int64_t>(json["model"]["vocab"].size()));
  int64_t vocab_size = parts.model->size();
  for (const AddedToken& token : parts.added_tokens) vocab_size = std::max<int64_t>(vocab_size, token.id + 1);
  parts.post_processor = read_post_processor(json["post_processor"], vocab_size);
  parts.decoder = read_decoder(json["decoder"]);
  return parts;
}

}  // namespace caravan
