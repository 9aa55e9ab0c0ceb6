#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/content_hash.h"

namespace caravan {

/// Text to token ids and back: byte-level BPE as a Hugging Face tokenizer.json describes it, or plain bytes. A value:
/// copies share one immutable state, and any number of threads may use it.
class Tokenizer {
 public:
  /// 256 ids, id = byte; no special tokens.
  static Tokenizer bytes();
  /// Reads the text of a tokenizer.json; `file` names it in errors. Supported are BPE models over the byte-level
  /// alphabet; normalizer null or NFC; pre-tokenizers ByteLevel, Split, Digits and Sequences of them; added tokens with
  /// all their flags; post-processors ByteLevel and TemplateProcessing; decoder ByteLevel. Throws DataError with the
  /// JSON path for anything else, so that ids are those of Python's `tokenizers` or there are none.
  static Tokenizer from_json(std::string json, std::string_view file = "tokenizer.json");
  static Tokenizer load(const std::filesystem::path& path);

  /// Ids of `text`. Special tokens that stand in the text become their ids. With `add_special_tokens`, also what the
  /// file's post-processor puts around a text (<|begin_of_text|>). Throws DataError if `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;

  using Sink = std::function<void(std::span<const int32_t> ids)>;
  /// The same ids without the added ones, in pieces, for a text whose ids need not be in memory at once.
  void encode(std::string_view text, const Sink& sink) const;

  /// The bytes that the ids stand for; not UTF-8 where the ids cut a character (TextStream replaces those). Throws
  /// DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  /// What one id stands for. Throws DataError for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const noexcept;

  /// One past the largest id: what a model's embedding needs.
  int64_t vocab_size() const noexcept;
  /// Id of a token by its text: an added token, or one of the vocabulary as the file writes it ("Ġthe").
  std::optional<int32_t> id_of(std::string_view token) const;
  /// Ends a document: the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> that is a special token of the file, or
  /// what `with_end_of_text` said.
  std::optional<int32_t> end_of_text() const noexcept;
  /// The same tokenizer with another end-of-text token (a model's config may name one). Throws DataError for an id
  /// outside the vocabulary.
  Tokenizer with_end_of_text(int32_t id) const;

  /// The tokenizer.json: byte for byte what was loaded.
  const std::string& to_json() const noexcept;
  void save(const std::filesystem::path& path) const;
  /// Equal hash: equal ids for every text.
  ContentHash hash() const noexcept;

 private:
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
  std::optional<int32_t> end_of_text_;
};

/// Decodes ids one by one as text for a terminal: always well-formed UTF-8, a character only when it is whole. The
/// concatenation of all that it returns is what Python's `decode` gives for the same ids; but an added token with
/// letters like é is that text, where Python takes the letters for bytes.
class TextStream {
 public:
  explicit TextStream(Tokenizer tokenizer, bool skip_special_tokens = false);
  /// The text that id `id` completes, "" if it only begins a character.
  std::string put(int32_t id);
  /// What was begun and never completed, as U+FFFD.
  std::string finish();

 private:
  std::string take_complete(bool is_end);
  Tokenizer tokenizer_;
  bool skips_special_;
  std::string pending_;
};

}  // namespace caravan
