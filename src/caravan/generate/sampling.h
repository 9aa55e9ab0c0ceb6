#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace caravan {

struct SamplingOptions {
  double temperature = 0.8;         ///< 0: always the most likely token
  int64_t top_k = 50;               ///< sample among this many; 0: all
  double top_p = 1.0;               ///< then among the most likely with this total probability (nucleus sampling:
                                    ///< Holtzman et al., "The curious case of neural text degeneration", ICLR 2020)
  double repetition_penalty = 1.0;  ///< see apply_repetition_penalty; 1: none
  uint64_t seed = 0;

  /// Throws UsageError for a value outside its range.
  void validate() const;
};

/// The seed of another sample of the same text: a function of both numbers, `seed` itself for sample 0.
uint64_t sample_seed(uint64_t seed, int64_t sample);

/// Makes the tokens of `ids` less likely: each of their logits is divided by `penalty` if positive, else multiplied by
/// it, once even if the id occurs several times (Keskar et al., "CTRL: a conditional transformer language model for
/// controllable generation", 2019; as in transformers, with the same bits).
void apply_repetition_penalty(std::span<float> logits, std::span<const int64_t> ids, double penalty);

/// Samples a token from `logits` ([vocabulary], any float dtype) for position `index` of the text. `text_ids` are the
/// ids of the text so far, to which the repetition penalty applies. Depends only on the arguments. Ties go to the
/// smaller id. Throws NumericsError if the largest logit is not finite.
int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, int64_t index,
                     std::span<const int64_t> text_ids = {});

}  // namespace caravan
