#include "caravan/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/data/tokenizer/tokenizer_encoder.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {

struct Tokenizer::State {
  State(std::string json_, std::string_view file)
      : json(std::move(json_)), hash(content_hash(json)), tables(read_tokenizer_json(json, file)) {
    vocab_size = tables.parts.model.size();
    for (const AddedToken& token : tables.parts.added_tokens) {
      vocab_size = std::max<int64_t>(vocab_size, token.id + 1);
      added.emplace(token.id, &token);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string json;
  ContentHash hash;
  TokenizerTables tables;
  int64_t vocab_size = 0;
  std::unordered_map<int32_t, const AddedToken*> added;
};

namespace {

/// The eos_token of the tokenizer_config.json in `folder`, "" if it names none.
std::string configured_end(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "";
  const MappedFile file(path, "tokenizer");
  const std::string name = path.string();
  check_json_depth(file.text(), name, "tokenizer");
  const nlohmann::json config = nlohmann::json::parse(file.text(), nullptr, /*allow_exceptions=*/false);
  const JsonReader json(config, "", name, "tokenizer");
  if (!config.is_object()) json.refuse("is not a JSON object", "restore the file from the model's folder");
  const JsonReader token = json["eos_token"];
  if (token.is_null()) return "";
  return token.value().is_object() ? token["content"].string() : token.string();
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {
  for (const std::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    const std::optional<int32_t> id = id_of(name);
    if (!id || !is_special(*id)) continue;
    end_of_text_ = id;
    break;
  }
}

Tokenizer Tokenizer::bytes() {
  WrittenTokenizer tokenizer;
  for (int byte = 0; byte < 256; ++byte) tokenizer.tokens.emplace_back(1, static_cast<char>(byte));
  tokenizer.cuts_words = false;
  return from_json(write_tokenizer_json(tokenizer), "the bytes tokenizer");
}

Tokenizer Tokenizer::from_json(std::string json, std::string_view file) {
  return Tokenizer(std::make_shared<const State>(std::move(json), file));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const MappedFile file(path, "tokenizer");
  Tokenizer tokenizer = from_json(std::string(file.text()), path.string());
  if (const auto end = tokenizer.id_of(configured_end(path.parent_path()))) tokenizer.end_of_text_ = end;
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  check_utf8(text, "tokenizer", "the text");
  const Sink none;
  TokenizerEncoder encoder(state_->tables, none, DataObserver::none());
  const TokenizerParts& parts = state_->tables.parts;
  if (add_special_tokens) encoder.ids() = parts.prefix;
  encoder.encode(text);
  if (add_special_tokens) encoder.ids().insert(encoder.ids().end(), parts.suffix.begin(), parts.suffix.end());
  return std::move(encoder.ids());
}

void Tokenizer::encode(std::string_view text, const Sink& sink, DataObserver& observer) const {
  encode(std::span(&text, 1), std::nullopt, sink, observer);
}

void Tokenizer::encode(std::span<const std::string_view> texts, std::optional<int32_t> between, const Sink& sink,
                       DataObserver& observer) const {
  SecondPass checking(observer);
  TokenizerEncoder encoder(state_->tables, sink, observer);
  bool is_first = true;
  for (const std::string_view text : texts) {
    check_utf8(text, "tokenizer", "the text", checking);
    if (!is_first && between) encoder.ids().push_back(*between);
    encoder.encode(text);
    is_first = false;
  }
  encoder.flush();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  for (const int32_t id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (!(skip_special_tokens && is_special(id))) out += bytes;
  }
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= state_->vocab_size) {
    throw DataError({.op = "tokenizer",
                     .subject = fmt::format("id {}", id),
                     .fact = fmt::format("is outside the vocabulary of {} tokens", state_->vocab_size),
                     .action = "use the tokenizer that produced the ids"});
  }
  const auto added = state_->added.find(id);
  return added != state_->added.end() ? std::string_view(added->second->content) : state_->tables.parts.model.bytes(id);
}

bool Tokenizer::is_special(int32_t id) const noexcept {
  const auto added = state_->added.find(id);
  return added != state_->added.end() && added->second->is_special;
}

int64_t Tokenizer::vocab_size() const noexcept { return state_->vocab_size; }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : state_->tables.parts.added_tokens) {
    if (added.content == token) return added.id;
  }
  return state_->tables.parts.model.find(token);
}

std::optional<int32_t> Tokenizer::end_of_text() const noexcept { return end_of_text_; }

Tokenizer Tokenizer::with_end_of_text(int32_t id) const {
  token_bytes(id);  // checks it
  Tokenizer other = *this;
  other.end_of_text_ = id;
  return other;
}

const std::string& Tokenizer::to_json() const noexcept { return state_->json; }

void Tokenizer::save(const std::filesystem::path& path) const { write_file_durably(path, state_->json, "tokenizer"); }

ContentHash Tokenizer::hash() const noexcept { return state_->hash; }

}  // namespace caravan
