#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "caravan/data/tokenizer/word_merger.h"

namespace caravan {

/// What BPE over bytes and BPE over characters have in common.
struct BpeParts {
  std::vector<std::optional<std::string>> tokens;  ///< by id, as the file writes them; nullopt: unused id
  std::vector<MergeTable::Merge> merges;           ///< by rank
  bool ignores_merges = false;                     ///< a word that is a token is encoded as that token
  bool fuses_unknown = false;                      ///< consecutive unknown symbols become one unknown token
  std::optional<int32_t> unknown_id;               ///< for a symbol without a token; nullopt: it is dropped
  bool falls_back_to_bytes = false;                ///< an unknown character becomes its bytes, such as <0x0A>
  std::string continuing_prefix;                   ///< of characters that do not begin a word
  std::string end_suffix;                          ///< of the character that ends a word
};

/// Byte-level BPE: tokens in the byte-level alphabet, words of bytes.
class BpeModel final : public TokenModel {
 public:
  explicit BpeModel(BpeParts parts);

  int64_t size() const noexcept override { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int32_t> find(std::string_view text) const override;
  std::string_view token(int32_t id) const noexcept override {
    return id < size() ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  std::string text(int32_t id) const override;
  bool has_bytes() const noexcept override { return true; }
  /// Without merges each byte of a word is encoded on its own.
  bool cuts_words() const noexcept override { return merges_.is_empty() && !ignores_merges_ && has_all_bytes(); }
  size_t first_part(std::string_view word) const override;
  bool has_all_bytes() const noexcept;

  /// The word may have any bytes. O(n) without merges, else O(n log n).
  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  void split_to_bytes(std::string_view word, std::vector<int32_t>& ids) const;

  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, int32_t> by_bytes_;          // keys point into bytes_
  std::unordered_map<std::string_view, int32_t> outside_alphabet_;  // tokens that no word can produce
  std::array<int32_t, 256> byte_ids_{};
  MergeTable merges_;
  bool ignores_merges_;
  bool fuses_unknown_;
  std::optional<int32_t> unknown_id_;
};

}  // namespace caravan
