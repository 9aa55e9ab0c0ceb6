#include <nlohmann/json.hpp>

#include "caravan/data/tokenizer/byte_alphabet.h"
#include "caravan/data/tokenizer/tokenizer_json.h"

namespace caravan {

std::string write_tokenizer_json(const WrittenTokenizer& tokenizer) {
  using Json = nlohmann::ordered_json;
  const ByteAlphabet& alphabet = ByteAlphabet::instance();
  const auto is_special = [&](size_t id) {
    return tokenizer.special_id && static_cast<size_t>(*tokenizer.special_id) == id;
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
  if (tokenizer.special_id) {
    added.push_back({{"id", *tokenizer.special_id},
                     {"content", tokenizer.tokens[static_cast<size_t>(*tokenizer.special_id)]},
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
                         {"post_processor", nullptr},
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
