#pragma once

#include <cstdint>
#include <vector>

namespace caravan {

/// What a model gets for one text or for two.
struct PostProcessor {
  /// A text, or special tokens.
  struct Piece {
    enum Kind : uint8_t { first_text, second_text, special };
    Kind kind;
    int32_t type_id;
    std::vector<int32_t> ids;  ///< of special
  };
  std::vector<Piece> single{{Piece::first_text, 0, {}}};
  std::vector<Piece> pair{{Piece::first_text, 0, {}}, {Piece::second_text, 1, {}}};
};

}  // namespace caravan
