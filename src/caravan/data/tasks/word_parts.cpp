#include "caravan/data/tasks/word_parts.h"

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using nlohmann::json;

/// The parts of a normalizer or pre-tokenizer, which may be a sequence of others.
void list_parts(const json& part, std::vector<const json*>& all) {
  if (!part.is_object()) return;
  all.push_back(&part);
  for (const char* key : {"normalizers", "pretokenizers"}) {
    if (!part.contains(key)) continue;
    for (const json& one : part[key]) list_parts(one, all);
  }
}

std::string text_of(const json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

/// What a token of the vocabulary begins with that begins a word, or continues one.
struct Marks {
  std::vector<std::string> begins{};
  std::string continues{};
  bool are_words = false;  ///< every token is one
};

/// Nothing known: no marks.
Marks marks_of(const json& file) {
  const json model = file.value("model", json::object());
  const std::string kind = text_of(model, "type");
  if (kind == "WordLevel") return {.are_words = true};
  if (!text_of(model, "end_of_word_suffix").empty()) return {};  // tokens say where words end
  if (std::string prefix = text_of(model, "continuing_subword_prefix"); !prefix.empty()) return {.continues = prefix};
  std::vector<const json*> parts;
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    if (file.contains(key)) list_parts(file[key], parts);
  }
  for (const json* part : parts) {
    const std::string type = text_of(*part, "type");
    if (type == "ByteLevel") return {.begins = {"Ġ", "Ċ", "ĉ", "č"}};  // space, line feed, tab, carriage return
    if (type == "Metaspace") return {.begins = {text_of(*part, "replacement")}};
    const bool replaces_spaces = type == "Replace" && part->contains("pattern") && (*part)["pattern"].is_object() &&
                                 text_of((*part)["pattern"], "String") == " ";
    if (replaces_spaces && !text_of(*part, "content").empty()) return {.begins = {text_of(*part, "content")}};
  }
  return {};
}

bool continues(std::string_view token, const Marks& marks) {
  if (!marks.continues.empty()) return token.starts_with(marks.continues);
  for (const std::string& begin : marks.begins) {
    if (token.starts_with(begin)) return false;
  }
  return !marks.are_words;
}

}  // namespace

std::vector<WordPart> special_parts(const Tokenizer& tokenizer) {
  std::vector<WordPart> parts(static_cast<size_t>(tokenizer.vocab_size()), WordPart::begins);
  for (size_t id = 0; id < parts.size(); ++id) {
    if (tokenizer.is_special(static_cast<int32_t>(id))) parts[id] = WordPart::special;
  }
  return parts;
}

std::vector<WordPart> word_parts(const Tokenizer& tokenizer) {
  const json file = json::parse(tokenizer.to_json());
  const Marks marks = marks_of(file);
  if (marks.begins.empty() && marks.continues.empty() && !marks.are_words) {
    throw UsageError({"data", "data.whole_words",
                      "the tokenizer's file does not say where words begin: it has neither WordPiece's prefix nor "
                      "Metaspace nor ByteLevel",
                      "", "use data.whole_words = false, or another data.tokenizer"});
  }
  std::vector<WordPart> parts = special_parts(tokenizer);
  std::vector<bool> is_added(parts.size(), false);
  for (const json& token : file.value("added_tokens", json::array())) is_added[token["id"].get<size_t>()] = true;
  const auto set = [&](size_t id, std::string_view token) {
    if (id < parts.size() && !is_added[id] && continues(token, marks)) parts[id] = WordPart::continues;
  };
  const json& vocabulary = file["model"]["vocab"];
  if (vocabulary.is_array()) {  // of Unigram
    for (size_t id = 0; id < vocabulary.size(); ++id) set(id, vocabulary[id][0].get_ref<const std::string&>());
  } else {
    for (const auto& [token, id] : vocabulary.items()) set(id.get<size_t>(), token);
  }
  return parts;
}

}  // namespace caravan
