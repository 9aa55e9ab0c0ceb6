#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "caravan/data/pair_map.h"

namespace caravan {

/// A byte-level BPE vocabulary: tokens, merges in the order of their rank, and the merging of one word. Immutable.
class BpeModel {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  struct Parts {
    std::vector<std::optional<std::string>> tokens;  ///< by id, in the byte-level alphabet; none: no token has the id
    std::vector<Merge> merges;                       ///< by rank; of a pair that occurs twice the last one counts
    bool ignores_merges = false;                     ///< a word that is a token is that token, whatever the merges
    bool fuses_unknown = false;                      ///< neighbouring unknown bytes are one unknown token
    std::optional<int32_t> unknown_id;               ///< for a byte without a token; none: it is left out
  };

  /// Memory of `encode_word`, one per thread.
  struct Scratch {
    struct Symbol {
      int32_t id;  ///< kGone once it is merged into its left neighbour
      uint32_t previous;
      uint32_t next;
    };
    std::vector<int32_t> ids;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> initial;
    std::vector<uint64_t> heap;
  };

  explicit BpeModel(Parts parts);
  BpeModel(BpeModel&&) = default;  // no copies: the maps point into bytes_
  BpeModel& operator=(BpeModel&&) = default;

  /// One past the largest id.
  int64_t size() const noexcept { return static_cast<int64_t>(bytes_.size()); }
  /// Id of the token written `text` in the byte-level alphabet.
  std::optional<int32_t> find(std::string_view text) const;
  /// What token `id` stands for; "" if there is none.
  std::string_view bytes(int32_t id) const noexcept {
    return id < size() ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool has_all_bytes() const noexcept;

  /// Appends the ids of a word, any bytes. Linear for a word without merges, else n log n. Throws DataError for a word
  /// of 4 GiB.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void split_to_bytes(std::string_view word, std::vector<int32_t>& ids) const;

  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, int32_t> by_bytes_;          // keys point into bytes_
  std::unordered_map<std::string_view, int32_t> outside_alphabet_;  // tokens no word can become; the same
  std::array<int32_t, 256> byte_ids_{};
  PairMap merges_;
  bool ignores_merges_;
  bool fuses_unknown_;
  std::optional<int32_t> unknown_id_;
};

}  // namespace caravan
