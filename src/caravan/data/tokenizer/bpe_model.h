#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "caravan/data/tokenizer/pair_map.h"

namespace caravan {

/// A byte-level BPE vocabulary: tokens, merges by rank, and the encoding of one word. Immutable.
class BpeModel {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  struct Parts {
    std::vector<std::optional<std::string>> tokens;  ///< by id, in the byte-level alphabet; nullopt: unused id
    std::vector<Merge> merges;                       ///< by rank; if a pair occurs twice, the last one counts
    bool ignores_merges = false;                     ///< a word that is a token is encoded as that token
    bool fuses_unknown = false;                      ///< consecutive unknown bytes become one unknown token
    std::optional<int32_t> unknown_id;               ///< for a byte without a token; nullopt: the byte is dropped
  };

  /// Scratch memory of `encode_word`, one per thread.
  struct Scratch {
    struct Symbol {
      int32_t id;  ///< kGone once merged into its left neighbour
      uint32_t previous;
      uint32_t next;
    };
    std::vector<int32_t> ids;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> initial;
    std::vector<uint64_t> heap;
  };

  explicit BpeModel(Parts parts);
  BpeModel(BpeModel&&) = default;  // not copyable: the maps point into bytes_
  BpeModel& operator=(BpeModel&&) = default;

  /// One past the largest id.
  int64_t size() const noexcept { return static_cast<int64_t>(bytes_.size()); }
  /// Id of the token whose text in the byte-level alphabet is `text`.
  std::optional<int32_t> find(std::string_view text) const;
  /// The bytes of token `id`; "" if the id is unused.
  std::string_view bytes(int32_t id) const noexcept {
    return id < size() ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool has_all_bytes() const noexcept;
  /// Whether each byte of a word is encoded on its own.
  bool has_no_merges() const noexcept;

  /// Appends the ids of a word of any bytes. O(n) without merges, else O(n log n). Throws DataError for a word of 4 GiB
  /// or more.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void split_to_bytes(std::string_view word, std::vector<int32_t>& ids) const;

  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, int32_t> by_bytes_;          // keys point into bytes_
  std::unordered_map<std::string_view, int32_t> outside_alphabet_;  // tokens that no word can produce
  std::array<int32_t, 256> byte_ids_{};
  PairMap merges_;
  bool ignores_merges_;
  bool fuses_unknown_;
  std::optional<int32_t> unknown_id_;
};

}  // namespace caravan
