#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "caravan/data/windows/token_file.h"

namespace caravan {

/// The documents that share the windows of a text (data.pack = "documents"). A document ends with the tokenizer's
/// end-of-text token, which belongs to it; the token after it is not a target.
class Documents {
 public:
  /// Reads the file once; keeps 8 bytes for each document. `restarts`: positions count from 0 in each document, else
  /// along the window. A document that continues from an earlier window counts from the start of this one.
  Documents(const TokenFile& tokens, int64_t end_of_text, bool restarts);
  /// The same for a file with other ends: `is_end` of an id, or of a mark.
  Documents(const TokenFile& tokens, const std::function<bool(int64_t)>& is_end, bool restarts);

  bool restarts() const noexcept { return restarts_; }

  /// The number of tokens in [first, first + count) that end a document: a window of these inputs has that many fewer
  /// targets. Two binary searches.
  int64_t num_ends(int64_t first, int64_t count) const;

  /// Marks one row, of the tokens from `first` on: sets for each input token the index of its document in the row, and
  /// its position; labels of tokens that end a document become kIgnoredLabel. All spans have equal size.
  void mark(int64_t first, std::span<int64_t> labels, std::span<int64_t> documents, std::span<int64_t> positions) const;

 private:
  bool restarts_;
  std::vector<int64_t> ends_;  ///< indices of tokens that end a document
};

}  // namespace caravan
