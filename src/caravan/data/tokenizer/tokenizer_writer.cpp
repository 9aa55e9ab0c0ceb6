#include <algorithm>

#include <nlohmann/json.hpp>

#include "caravan/data/tokenizer/byte_alphabet.h"
#include "caravan/data/tokenizer/tokenizer_json.h"

namespace caravan {

namespace {

using Json = nlohmann::ordered_json;

/// [CLS] $A [SEP], and [CLS] $A [SEP] $B:1 [SEP]:1.
Json template_of(const WrittenTokenizer& tokenizer) {
  if (!tokenizer.before && !tokenizer.after) return nullptr;
  const auto text_of = [&](int32_t id) { return tokenizer.tokens[static_cast<size_t>(id)]; };
  const auto put = [&](Json& list, std::optional<int32_t> id, int type) {
    if (id) list.push_back(Json{{"SpecialToken", {{"id", text_of(*id)}, {"type_id", type}}}});
  };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  Json single = Json::array();
  put(single, tokenizer.before, 0);
  single.push_back(sequence("A", 0));
  put(single, tokenizer.after, 0);
  Json pair = single;
  pair.push_back(sequence("B", 1));
  put(pair, tokenizer.after, 1);
  Json tokens = Json::object();
  for (const std::optional<int32_t> id : {tokenizer.before, tokenizer.after}) {
    if (id) tokens[text_of(*id)] = {{"id", text_of(*id)}, {"ids", {*id}}, {"tokens", {text_of(*id)}}};
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

}  // namespace

std::string write_tokenizer_json(const WrittenTokenizer& tokenizer) {
  const ByteAlphabet& alphabet = ByteAlphabet::instance();
  const auto is_special = [&](size_t id) {
    return std::ranges::find(tokenizer.special_ids, static_cast<int32_t>(id)) != tokenizer.special_ids.end();
  };
  std::vector<std::string> texts(tokenizer.tokens.size());
  Json::object_t vocabulary;
  vocabulary.reserve(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    texts[id] = is_special(id) ? tokenizer.tokens[id] : alphabet.encode(tokenizer.tokens[id]);
    // Not operator[], which searches all earlier keys: these keys are known to be distinct.
    static_cast<std::vector<Json::object_t::value_type>&>(vocabulary).emplace_back(texts[id], id);
  }
  Json merges = Json::array();
  for (const MergeTable::Merge& merge : tokenizer.merges) {
    merges.push_back({texts[static_cast<size_t>(merge.left)], texts[static_cast<size_t>(merge.right)]});
  }
  Json added = Json::array();
  for (const int32_t id : tokenizer.special_ids) {
    added.push_back({{"id", id},
                     {"content", tokenizer.tokens[static_cast<size_t>(id)]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  Json pre_tokenizer = byte_level;
  pre_tokenizer["use_regex"] = tokenizer.cuts_words;
  Json decoder = byte_level;
  decoder["use_regex"] = true;
  const Json document = {{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added},
                         {"normalizer", nullptr},
                         {"pre_tokenizer", pre_tokenizer},
                         {"post_processor", template_of(tokenizer)},
                         {"decoder", decoder},
                         {"model",
                          {{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", nullptr},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", false},
                           {"vocab", std::move(vocabulary)},
                           {"merges", std::move(merges)}}}};
  return document.dump(2) + "\n";
}

}  // namespace caravan
