#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/data/tokenizer/byte_alphabet.h"
#include "caravan/data/tokenizer/character_bpe.h"
#include "caravan/data/tokenizer/tokenizer_json.h"
#include "caravan/data/tokenizer/unigram_model.h"
#include "caravan/data/tokenizer/word_models.h"

namespace caravan {
namespace {

using Ids = std::unordered_map<std::string_view, int32_t>;  // the keys point into the document
using Tokens = std::vector<std::optional<std::string>>;

/// Fills `tokens` and returns the ids by token.
Ids read_vocabulary(const JsonReader& json, Tokens& tokens) {
  const size_t count = json.size();
  // Ids may have gaps, but a single huge id must not determine how much is allocated.
  const int64_t largest = std::min<int64_t>(kLargestTokenId, 2 * static_cast<int64_t>(count) + 1024);
  Ids ids;
  ids.reserve(count);
  if (count > 0 && !json.value().is_object()) json.refuse("is a list", "give an object: token to id");
  for (const auto& [token, value] : json.value().items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest)) {
      json.refuse(fmt::format("gives \"{}\" the id {}", token, value.dump()),
                  fmt::format("ids of {} tokens are whole numbers from 0 to {}", count, largest));
    }
    const auto id = value.get<size_t>();
    if (id >= tokens.size()) tokens.resize(id + 1);
    if (tokens[id]) {
      json.refuse(fmt::format("gives \"{}\" and \"{}\" the same id {}", *tokens[id], token, id),
                  "give each token its own id");
    }
    tokens[id] = token;
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

void read_merges(const JsonReader& json, const Ids& ids, BpeParts& parts) {
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
    const std::string_view end = right.substr(std::min(right.size(), parts.continuing_prefix.size()));
    result.assign(left).append(end);
    parts.merges.push_back({id(left), id(right), id(result)});
  }
}

std::string affix(const JsonReader& json) { return json.is_null() ? "" : json.string(); }

bool has_all_bytes(const Ids& ids) {
  for (int byte = 0; byte < 256; ++byte) {
    if (!ids.contains(ByteAlphabet::instance().encode(std::string(1, static_cast<char>(byte))))) return false;
  }
  return true;
}

std::unique_ptr<TokenModel> read_bpe(const JsonReader& json, PreTokenizer& pre_tokenizer) {
  json.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges", "vocab", "merges"});
  const JsonReader dropout = json["dropout"];
  if (!dropout.is_null() && !(dropout.value().is_number() && dropout.value().get<double>() == 0)) {
    dropout.refuse("makes the ids random", "supported: null");
  }
  BpeParts parts;
  parts.continuing_prefix = affix(json["continuing_subword_prefix"]);
  parts.end_suffix = affix(json["end_of_word_suffix"]);
  parts.ignores_merges = json["ignore_merges"].boolean_or(false);
  parts.fuses_unknown = json["fuse_unk"].boolean_or(false);
  parts.falls_back_to_bytes = json["byte_fallback"].boolean_or(false);
  const Ids ids = read_vocabulary(json["vocab"], parts.tokens);
  read_merges(json["merges"], ids, parts);
  const bool covers_bytes = has_all_bytes(ids);
  const JsonReader unknown = json["unk_token"];
  if (!unknown.is_null()) {
    const auto found = ids.find(unknown.string());
    if (found != ids.end()) {
      parts.unknown_id = found->second;
    } else if (!(pre_tokenizer.ends_with_byte_level() && covers_bytes) && !parts.falls_back_to_bytes) {
      unknown.refuse("is not in the vocabulary", "add it there");
    }
  }
  const bool takes_bytes = pre_tokenizer.ends_with_byte_level() && parts.continuing_prefix.empty() &&
                           parts.end_suffix.empty() && (covers_bytes || !parts.falls_back_to_bytes);
  if (!takes_bytes) return std::make_unique<CharacterBpe>(std::move(parts));
  pre_tokenizer.leave_bytes();
  return std::make_unique<BpeModel>(std::move(parts));
}

/// The id of model.unk_token, which must be in the vocabulary.
int32_t read_unknown(const JsonReader& json, const Ids& ids) {
  const auto found = ids.find(json.string());
  if (found == ids.end()) json.refuse("is not in the vocabulary", "add it there");
  return found->second;
}

std::unique_ptr<TokenModel> read_word_piece(const JsonReader& json) {
  json.allow_only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceModel::Parts parts;
  const Ids ids = read_vocabulary(json["vocab"], parts.tokens);
  parts.unknown_id = read_unknown(json["unk_token"], ids);
  parts.continuing_prefix = json["continuing_subword_prefix"].string();
  parts.most_characters = json["max_input_chars_per_word"].integer(0, kLargestTokenId);
  return std::make_unique<WordPieceModel>(std::move(parts));
}

std::unique_ptr<TokenModel> read_word_level(const JsonReader& json) {
  json.allow_only({"type", "unk_token", "vocab"});
  Tokens tokens;
  const Ids ids = read_vocabulary(json["vocab"], tokens);
  const int32_t unknown = read_unknown(json["unk_token"], ids);
  return std::make_unique<WordLevelModel>(std::move(tokens), unknown);
}

std::unique_ptr<TokenModel> read_unigram(const JsonReader& json) {
  json.allow_only({"type", "unk_id", "vocab", "byte_fallback"});
  UnigramModel::Parts parts;
  const JsonReader vocab = json["vocab"];
  const size_t count = vocab.size();
  if (count > 0 && !vocab.value().is_array()) vocab.refuse("is an object", "give a list of [token, score]");
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& entry = vocab.value()[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      vocab.element(i).refuse("is not a token and its score", "give [token, score]");
    }
    parts.tokens.push_back(entry[0].get<std::string>());
    parts.scores.push_back(entry[1].get<double>());
  }
  const JsonReader unknown = json["unk_id"];
  if (unknown.is_null()) unknown.refuse("is null", "give the id of the token for unknown characters");
  parts.unknown_id = static_cast<int32_t>(unknown.integer(0, static_cast<int64_t>(count) - 1));
  parts.falls_back_to_bytes = json["byte_fallback"].boolean_or(false);
  return std::make_unique<UnigramModel>(std::move(parts));
}

/// Files of older versions do not name the type.
size_t kind_of(const JsonReader& json) {
  if (json.has("type")) return json["type"].choice({"BPE", "WordPiece", "Unigram", "WordLevel"});
  if (json.has("merges")) return 0;
  if (json.has("continuing_subword_prefix")) return 1;
  return json.has("unk_id") ? 2 : 3;
}

}  // namespace

std::unique_ptr<TokenModel> read_model(const JsonReader& json, PreTokenizer& pre_tokenizer) {
  if (json.is_null()) json.refuse("is missing", "name a tokenizer.json as Hugging Face's `tokenizers` writes it");
  switch (kind_of(json)) {
    case 0: return read_bpe(json, pre_tokenizer);
    case 1: return read_word_piece(json);
    case 2: return read_unigram(json);
    default: return read_word_level(json);
  }
}

}  // namespace caravan
