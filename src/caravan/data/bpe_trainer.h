#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "caravan/data/tokenizer.h"

namespace caravan {

struct BpeTrainerOptions {
  std::string end_of_text = "<|endoftext|>";  ///< the special token; "": none
  int64_t min_frequency = 2;                  ///< a pair seen less often is not merged
};

/// Trains a byte-level BPE tokenizer: words cut by GPT-2's pattern, none across documents. Ids: the 256 bytes in the
/// order of GPT-2's alphabet, the special token, then the merges, each the most frequent pair of its time, on a tie the
/// pair with the smaller ids. Depends on nothing but the arguments. The vocabulary is smaller than `vocab_size` if the
/// text has too few pairs. Throws UsageError if `vocab_size` does not hold the bytes and the special token, DataError
/// if the text is not UTF-8.
Tokenizer train_bpe(std::span<const std::string_view> documents, int64_t vocab_size,
                    const BpeTrainerOptions& options = {});

}  // namespace caravan
