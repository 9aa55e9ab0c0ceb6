#pragma once

#include <cstdint>
#include <span>

#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/tokenizer/tokenizer.h"

namespace caravan {

/// The layout of a row of an encoder-decoder.
struct SequencePairLayout {
  int64_t num_sources = 0;  ///< positions of the encoder, before those of the decoder
  int64_t start = 0;        ///< the token from which the decoder starts
  int64_t pad = 0;
};

/// Fills a row of source and target, each with its end token, neither longer than its part of the row:
///   ids        [source, padded | start, target without its last token, padded]
///   labels     [kIgnoredLabel .. | target, kIgnoredLabel ..]
///   documents  if the row has them: 1, and 0 for padding of the source. Attention of the decoder is causal, and labels
///              beyond the target are ignored, so that its padding harms nothing; every query sees some key.
void fill_sequence_pair(std::span<const int64_t> source, std::span<const int64_t> target,
                        const SequencePairLayout& layout, const RowBuffers& row);

/// The token that ends the texts of `task`: the tokenizer's end-of-text token, else its sep_token. Throws UsageError if
/// it has neither.
int64_t end_token(const Tokenizer& tokenizer, const char* task);

/// The token that fills rows, and that targets start from where a model names none: the tokenizer's pad token, else its
/// end-of-text token, else 0.
int64_t filling_token(const Tokenizer& tokenizer);

}  // namespace caravan
