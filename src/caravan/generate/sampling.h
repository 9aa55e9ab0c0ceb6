#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace caravan {

struct SamplingOptions {
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t top_k = 50;        ///< sample among this many; 0: all
  double top_p = 1.0;        ///< then among the most likely with this total probability (nucleus sampling:
                             ///< Holtzman et al., "The curious case of neural text degeneration", ICLR 2020)
  uint64_t seed = 0;

  /// Throws UsageError for a value outside its range.
  void validate() const;
};

/// Samples a token from `logits` ([vocabulary], any float dtype) for position `index` of the text. Depends only on
/// (logits, options, index). Ties go to the smaller id. Throws NumericsError if the largest logit is not finite.
int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, int64_t index);

}  // namespace caravan
