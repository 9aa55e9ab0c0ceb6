#include "caravan/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/tokenizer/special_tokens.h"
#include "caravan/data/tokenizer/text_decoder.h"
#include "caravan/data/tokenizer/tokenizer_encoder.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {

struct Tokenizer::State {
  State(std::string json_, std::string_view file)
      : json(std::move(json_)), hash(content_hash(json)), tables(read_tokenizer_json(json, file)) {
    const TokenModel& model = *tables.parts.model;
    vocab_size = model.size();
    for (const AddedToken& token : tables.parts.added_tokens) {
      vocab_size = std::max<int64_t>(vocab_size, token.id + 1);
      added.emplace(token.id, Added{&token, token.content, false});
    }
    set_added_texts();
    if (model.has_bytes() && tables.parts.decoder.is_byte_level()) return;
    spellings.reserve(static_cast<size_t>(model.size()));
    for (int32_t id = 0; id < model.size(); ++id) {
      spellings.push_back(tables.parts.decoder.spelling(model.text(id)));
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  struct Added {
    const AddedToken* token;
    std::string text;   ///< what a decoder starts from: normalized, if the token is searched in normalized text
    bool is_skippable;  ///< decoding without special tokens leaves it out
  };

  void set_added_texts() {
    Normalizer::Scratch scratch;
    std::set<std::string_view> specials;
    for (auto& [id, one] : added) {
      if (one.token->is_normalized) one.text = tables.parts.normalizer.apply({one.token->content}, scratch).text;
      if (one.token->is_special) specials.insert(one.token->content);
    }
    // So does `tokenizers`: a special token that the normalizer changes is not recognized.
    for (auto& [id, one] : added) one.is_skippable = specials.contains(one.text);
  }

  /// What a decoder starts from.
  std::string text_of(int32_t id) const {
    const auto found = added.find(id);
    return found != added.end() ? found->second.text : tables.parts.model->text(id);
  }
  /// What id `id` adds to a text if the decoder is ByteLevel.
  std::string_view bytes_of(int32_t id, const Tokenizer& tokenizer) const {
    const auto found = added.find(id);
    return found != added.end() ? std::string_view(found->second.text) : tokenizer.token_bytes(id);
  }
  bool is_skippable(int32_t id) const {
    const auto found = added.find(id);
    return found != added.end() && found->second.is_skippable;
  }

  std::string json;
  ContentHash hash;
  TokenizerTables tables;
  int64_t vocab_size = 0;
  std::unordered_map<int32_t, Added> added;
  std::vector<std::string> spellings;  // by id, of the model; empty if its tokens are these bytes themselves
};

Tokenizer::Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {
  const auto first_special = [this](std::initializer_list<std::string_view> names) -> std::optional<int32_t> {
    for (const std::string_view name : names) {
      const std::optional<int32_t> id = id_of(name);
      if (id && is_special(*id)) return id;
    }
    return std::nullopt;
  };
  named_ = {.end_of_text = first_special({"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}),
            .mask = first_special({"[MASK]", "<mask>"}),
            .pad = first_special({"[PAD]", "<pad>"}),
            .cls = first_special({"[CLS]"}),
            .sep = first_special({"[SEP]"}),
            .unknown = first_special({"[UNK]", "<unk>"})};
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
  refuse_sentencepiece(path);
  const MappedFile file(path, "tokenizer");
  Tokenizer tokenizer = from_json(std::string(file.text()), path.string());
  const auto names = read_special_tokens(path.parent_path());
  const auto set = [&](const char* key, std::optional<int32_t>& id) {
    const auto name = names.find(key);
    if (name == names.end()) return;
    if (const auto named = tokenizer.id_of(name->second)) id = named;
  };
  set("eos_token", tokenizer.named_.end_of_text);
  set("mask_token", tokenizer.named_.mask);
  set("pad_token", tokenizer.named_.pad);
  set("cls_token", tokenizer.named_.cls);
  set("sep_token", tokenizer.named_.sep);
  set("unk_token", tokenizer.named_.unknown);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return add_special_tokens ? encode_single(text).ids : ids_of(text);
}

std::vector<int32_t> Tokenizer::ids_of(std::string_view text) const {
  check_utf8(text, "tokenizer", "the text");
  const Sink none;
  TokenizerEncoder encoder(state_->tables, none, DataObserver::none());
  encoder.encode(text);
  return std::move(encoder.ids());
}

Encoding Tokenizer::encode_single(std::string_view text, bool add_special_tokens) const {
  return assembled(ids_of(text), std::nullopt, add_special_tokens);
}

Encoding Tokenizer::encode_pair(std::string_view text, std::string_view pair, bool add_special_tokens) const {
  const std::vector<int32_t> first = ids_of(text);
  const std::vector<int32_t> second = ids_of(pair);
  return assembled(first, second, add_special_tokens);
}

Encoding Tokenizer::with_special_tokens(std::span<const int32_t> text,
                                        std::optional<std::span<const int32_t>> pair) const {
  return assembled(text, pair, /*add_special_tokens=*/true);
}

Encoding Tokenizer::assembled(std::span<const int32_t> text, std::optional<std::span<const int32_t>> pair,
                              bool add_special_tokens) const {
  const PostProcessor& processor = state_->tables.parts.post_processor;
  Encoding encoding;
  for (const PostProcessor::Piece& piece : pair ? processor.pair : processor.single) {
    const bool is_special = piece.kind == PostProcessor::Piece::special;
    if (is_special && !add_special_tokens) continue;
    const std::span<const int32_t> ids = is_special ? std::span(piece.ids)
                                         : piece.kind == PostProcessor::Piece::first_text
                                             ? text
                                             : pair.value_or(text.first(0));
    encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
    encoding.type_ids.insert(encoding.type_ids.end(), ids.size(), piece.type_id);
  }
  return encoding;
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
  const TextDecoder& decoder = state_->tables.parts.decoder;
  std::string out;
  DecoderRun run(decoder);
  for (const int32_t id : ids) {
    check_id(id);
    if (skip_special_tokens && state_->is_skippable(id)) continue;
    if (decoder.is_byte_level()) {
      out += state_->bytes_of(id, *this);
    } else {
      run.put(state_->text_of(id), out);
    }
  }
  if (!decoder.is_byte_level()) run.finish(out);
  return out;
}

void Tokenizer::check_id(int32_t id) const {
  if (id >= 0 && id < state_->vocab_size) return;
  throw DataError({.op = "tokenizer",
                   .subject = fmt::format("id {}", id),
                   .fact = fmt::format("is outside the vocabulary of {} tokens", state_->vocab_size),
                   .action = "use the tokenizer that produced the ids"});
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  check_id(id);
  if (const auto added = state_->added.find(id); added != state_->added.end()) return added->second.token->content;
  if (state_->spellings.empty()) return state_->tables.parts.model->token(id);
  const auto index = static_cast<size_t>(id);
  return index < state_->spellings.size() ? std::string_view(state_->spellings[index]) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const noexcept {
  const auto added = state_->added.find(id);
  return added != state_->added.end() && added->second.token->is_special;
}

int64_t Tokenizer::vocab_size() const noexcept { return state_->vocab_size; }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : state_->tables.parts.added_tokens) {
    if (added.content == token) return added.id;
  }
  return state_->tables.parts.model->find(token);
}

Tokenizer Tokenizer::with_end_of_text(int32_t id) const {
  check_id(id);
  Tokenizer other = *this;
  other.named_.end_of_text = id;
  return other;
}

const std::string& Tokenizer::to_json() const noexcept { return state_->json; }

void Tokenizer::save(const std::filesystem::path& path) const { write_file_durably(path, state_->json, "tokenizer"); }

ContentHash Tokenizer::hash() const noexcept { return state_->hash; }

struct TextStream::Run {
  explicit Run(const TextDecoder& decoder) : decoding(decoder) {}
  DecoderRun decoding;
};

TextStream::TextStream(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skips_special_(skip_special_tokens) {
  const TextDecoder& decoder = tokenizer_.state_->tables.parts.decoder;
  if (!decoder.is_byte_level()) run_ = std::make_unique<Run>(decoder);
}

TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

std::string TextStream::put(int32_t id) {
  const Tokenizer::State& state = *tokenizer_.state_;
  tokenizer_.check_id(id);
  if (skips_special_ && state.is_skippable(id)) return "";
  if (run_) {
    run_->decoding.put(state.text_of(id), pending_);
  } else {
    pending_ += state.bytes_of(id, tokenizer_);
  }
  return take_utf8(pending_, /*is_end=*/false);
}

std::string TextStream::finish() {
  if (run_) run_->decoding.finish(pending_);
  return take_utf8(pending_, /*is_end=*/true);
}

}  // namespace caravan
