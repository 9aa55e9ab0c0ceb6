#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/tokenizer/tokenizer.h"

namespace caravan {

struct BpeTrainerOptions {
  std::string end_of_text = "<|endoftext|>";  ///< a special token; "": none
  /// Others, which follow it. With [CLS] and [SEP] among them, `[CLS] $A [SEP]` is what a model gets for a text, and
  /// `[CLS] $A [SEP] $B [SEP]`, of types 0 and 1, for a pair.
  std::vector<std::string> more_special{};
  bool ends_texts = false;    ///< without [CLS] and [SEP]: the end-of-text token ends what a model gets for a text
  int64_t min_frequency = 2;  ///< less frequent pairs are not merged
};

/// Trains a byte-level BPE tokenizer. Words are split by GPT-2's pattern and do not cross documents. Ids: the 256 bytes
/// in the order of GPT-2's alphabet, the special tokens, then one for each merge of the currently most frequent pair;
/// ties go to the pair with the smaller ids. Deterministic. The vocabulary is smaller than `vocab_size` if the text has
/// too few pairs. Throws UsageError if `vocab_size` does not hold the bytes and the special tokens, DataError if the
/// text is not UTF-8, and what `observer` throws.
Tokenizer train_bpe(std::span<const std::string_view> documents, int64_t vocab_size,
                    const BpeTrainerOptions& options = {}, DataObserver& observer = DataObserver::none());

}  // namespace caravan
