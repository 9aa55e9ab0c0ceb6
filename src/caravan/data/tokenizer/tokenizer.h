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
#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// Converts text to token ids and back: byte-level BPE as described by a Hugging Face tokenizer.json, or plain bytes.
/// Copies share one immutable state, which any number of threads may use.
class Tokenizer {
 public:
  /// 256 ids, id = byte; no special tokens.
  static Tokenizer bytes();
  /// Reads the text of a tokenizer.json; `file` names it in errors. Supported are BPE models over the byte-level
  /// alphabet; normalizer null or NFC; pre-tokenizers ByteLevel, Split, Digits and Sequences of them; added tokens with
  /// all their flags; post-processors ByteLevel and TemplateProcessing; decoder ByteLevel. Throws DataError with the
  /// JSON path for anything else, so that ids always equal those of Python's `tokenizers`.
  static Tokenizer from_json(std::string json, std::string_view file = "tokenizer.json");
  /// Reads the file `path`; the tokenizer_config.json beside it, if any, names the end-of-text token.
  static Tokenizer load(const std::filesystem::path& path);

  /// Ids of `text`. Special tokens in the text become their ids. `add_special_tokens` also adds the tokens that the
  /// file's post-processor puts around a text (<|begin_of_text|>). Throws DataError if `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;

  using Sink = std::function<void(std::span<const int32_t> ids)>;
  /// The same ids, without added special tokens, in pieces, so that the ids of a large text need not be in memory at
  /// once. `observer` is told the number of bytes done, and may throw to cancel.
  void encode(std::string_view text, const Sink& sink, DataObserver& observer = DataObserver::none()) const;

  /// The same for several texts, with the id `between` (if set) between them. For many short texts: words seen in one
  /// text are cached for the next.
  void encode(std::span<const std::string_view> texts, std::optional<int32_t> between, const Sink& sink,
              DataObserver& observer = DataObserver::none()) const;

  /// The bytes of the ids; not UTF-8 where the ids split a character (TextStream handles that). Throws
  /// DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  /// The bytes of one id. Throws DataError for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const noexcept;

  /// One past the largest id: the number of rows an embedding needs.
  int64_t vocab_size() const noexcept;
  /// Id of a token by its text: of an added token, or of a token of the vocabulary as written in the file ("Ġthe").
  std::optional<int32_t> id_of(std::string_view token) const;
  /// The token that ends a document: the eos_token of tokenizer_config.json, else the first of <|endoftext|>,
  /// <|end_of_text|>, </s>, <eos> that is a special token of the file, or the one set by `with_end_of_text`.
  std::optional<int32_t> end_of_text() const noexcept;
  /// The same tokenizer with another end-of-text token (a model's config may name one). Throws DataError for an id
  /// outside the vocabulary.
  Tokenizer with_end_of_text(int32_t id) const;

  /// The tokenizer.json, byte for byte as loaded.
  const std::string& to_json() const noexcept;
  void save(const std::filesystem::path& path) const;
  /// Tokenizers with equal hashes give equal ids for every text.
  ContentHash hash() const noexcept;

 private:
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
  std::optional<int32_t> end_of_text_;
};

/// Decodes ids one by one for display. Returns well-formed UTF-8, and a character only once it is complete. The
/// concatenated output equals that of Python's `decode`, except for an added token with letters like é: Python takes
/// these letters for bytes.
class TextStream {
 public:
  explicit TextStream(Tokenizer tokenizer, bool skip_special_tokens = false);
  /// The text that id `id` completes, "" if it only begins a character.
  std::string put(int32_t id);
  /// The bytes of an incomplete character, as U+FFFD.
  std::string finish();

 private:
  std::string take_complete(bool is_end);
  Tokenizer tokenizer_;
  bool skips_special_;
  std::string pending_;
};

}  // namespace caravan
