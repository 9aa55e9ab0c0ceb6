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

/// What a model gets for a text or a pair of texts.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;  ///< of each id: which of the texts it belongs to, as the file's post-processor has it
};

/// Converts text to token ids and back, as described by a Hugging Face tokenizer.json, or plain bytes. Ids and texts
/// equal those of Python's `tokenizers`. Copies share one immutable state, which any number of threads may use.
class Tokenizer {
 public:
  /// 256 ids, id = byte; no special tokens.
  static Tokenizer bytes();
  /// Reads the text of a tokenizer.json; `file` names it in errors. Supported:
  ///   models           BPE without dropout, WordPiece, Unigram with unk_id, WordLevel
  ///   normalizers      NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, BertNormalizer,
  ///                    Precompiled, Nmt, ByteLevel, Sequence
  ///   pre-tokenizers   ByteLevel, Split, Digits, BertPreTokenizer, Metaspace, Whitespace, WhitespaceSplit,
  ///                    Punctuation, CharDelimiterSplit, Sequence
  ///   post-processors  one of TemplateProcessing, BertProcessing, RobertaProcessing; ByteLevel, Sequence
  ///   decoders         ByteLevel, WordPiece, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder, Sequence
  /// each of them but the model may be null; added tokens with all their flags; patterns as in regex_dialect.h.
  /// `truncation` and `padding` do not count, as in `transformers`. Throws DataError with the JSON path for anything
  /// else, so that ids always equal those of Python's `tokenizers`.
  static Tokenizer from_json(std::string json, std::string_view file = "tokenizer.json");
  /// Reads the file `path`; the tokenizer_config.json and special_tokens_map.json beside it, if any, name special
  /// tokens. Throws DataError for a model of SentencePiece, with the command that converts it.
  static Tokenizer load(const std::filesystem::path& path);

  /// Ids of `text`. Special tokens in the text become their ids. `add_special_tokens` also adds the tokens that the
  /// file's post-processor puts around a text (<|begin_of_text|>). Throws DataError if `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;

  /// Ids and type ids of one text, as a model gets it: with the special tokens that the file's post-processor adds
  /// ([CLS] text [SEP]), unless `add_special_tokens` is false.
  Encoding encode_single(std::string_view text, bool add_special_tokens = true) const;
  /// The same of two texts: [CLS] text [SEP] pair [SEP].
  Encoding encode_pair(std::string_view text, std::string_view pair, bool add_special_tokens = true) const;
  /// The same of texts that are ids already: without special tokens, and perhaps truncated.
  Encoding with_special_tokens(std::span<const int32_t> text,
                               std::optional<std::span<const int32_t>> pair = std::nullopt) const;

  using Sink = std::function<void(std::span<const int32_t> ids)>;
  /// The same ids, without added special tokens, in pieces, so that the ids of a large text need not be in memory at
  /// once. `observer` is told the number of bytes done, and may throw to cancel.
  void encode(std::string_view text, const Sink& sink, DataObserver& observer = DataObserver::none()) const;

  /// The same for several texts, with the id `between` (if set) between them. For many short texts: words seen in one
  /// text are cached for the next.
  void encode(std::span<const std::string_view> texts, std::optional<int32_t> between, const Sink& sink,
              DataObserver& observer = DataObserver::none()) const;

  /// The text of the ids. With the decoder ByteLevel these are bytes, not UTF-8 where the ids split a character
  /// (TextStream handles that). Throws DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  /// The bytes that one id stands for in the middle of a text: " the" for "▁the". Throws DataError for an id outside
  /// the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const noexcept;

  /// One past the largest id: the number of rows an embedding needs.
  int64_t vocab_size() const noexcept;
  /// Id of a token by its text: of an added token, or of a token of the vocabulary as written in the file ("Ġthe").
  std::optional<int32_t> id_of(std::string_view token) const;
  /// The token that ends a document: the eos_token of tokenizer_config.json, else the first of <|endoftext|>,
  /// <|end_of_text|>, </s>, <eos> that is a special token of the file, or the one set by `with_end_of_text`.
  std::optional<int32_t> end_of_text() const noexcept { return named_.end_of_text; }
  /// The mask_token, pad_token .. of tokenizer_config.json or special_tokens_map.json; else [MASK] or <mask>, [PAD] or
  /// <pad>, [CLS], [SEP], [UNK] or <unk>, if that is a special token of the file.
  std::optional<int32_t> mask_token() const noexcept { return named_.mask; }
  std::optional<int32_t> pad_token() const noexcept { return named_.pad; }
  std::optional<int32_t> cls_token() const noexcept { return named_.cls; }
  std::optional<int32_t> sep_token() const noexcept { return named_.sep; }
  std::optional<int32_t> unk_token() const noexcept { return named_.unknown; }
  /// The same tokenizer with another end-of-text token (a model's config may name one). Throws DataError for an id
  /// outside the vocabulary.
  Tokenizer with_end_of_text(int32_t id) const;

  /// The tokenizer.json, byte for byte as loaded.
  const std::string& to_json() const noexcept;
  void save(const std::filesystem::path& path) const;
  /// Tokenizers with equal hashes give equal ids for every text.
  ContentHash hash() const noexcept;

 private:
  friend class TextStream;
  struct State;
  struct Named {
    std::optional<int32_t> end_of_text, mask, pad, cls, sep, unknown;
  };
  explicit Tokenizer(std::shared_ptr<const State> state);
  void check_id(int32_t id) const;
  std::vector<int32_t> ids_of(std::string_view text) const;
  Encoding assembled(std::span<const int32_t> text, std::optional<std::span<const int32_t>> pair,
                     bool add_special_tokens) const;

  std::shared_ptr<const State> state_;
  Named named_;
};

/// Decodes ids one by one for display. Returns well-formed UTF-8, and a character only once it is complete and no later
/// id can change it: a byte of ByteFallback waits for the end of its run, and a decoder that replaces in the fused text
/// for finish(). The concatenated output equals that of Python's `decode`, except, with the decoder ByteLevel, for an
/// added token with letters like é: Python takes these letters for bytes.
class TextStream {
 public:
  explicit TextStream(Tokenizer tokenizer, bool skip_special_tokens = false);
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  ~TextStream();
  /// The text that id `id` completes, "" if there is none yet.
  std::string put(int32_t id);
  /// What was held back, with U+FFFD for an incomplete character.
  std::string finish();

 private:
  struct Run;
  Tokenizer tokenizer_;
  bool skips_special_;
  std::unique_ptr<Run> run_;  // null for the decoder ByteLevel
  std::string pending_;
};

}  // namespace caravan
