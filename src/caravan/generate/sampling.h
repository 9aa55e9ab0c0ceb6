#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace caravan {

struct SamplingOptions {
  double temperature = 0.8;         ///< 0: always the most likely token
  int64_t top_k = 50;               ///< sample among this many; 0: all
  double top_p = 1.0;               ///< then among the most likely with this total probability (nucleus sampling:
                                    ///< Holtzman et al., "The curious case of neural text degeneration", ICLR 2020)
  double min_p = 0.0;               ///< then those of at least this times the probability of the most likely; 0: all
                                    ///< (Nguyen et al., arXiv 2407.01082)
  double typical_p = 1.0;           ///< then those whose surprise is closest to the expected one, with this total
                                    ///< probability (locally typical sampling: Meister et al., arXiv 2202.00666)
  double repetition_penalty = 1.0;  ///< see apply_repetition_penalty; 1: none
  double frequency_penalty = 0.0;   ///< subtracted from the logit of a token for each time that it was generated
  double presence_penalty = 0.0;    ///< subtracted once from that of a token that was generated
  std::vector<std::pair<int64_t, double>> logit_bias{};  ///< tokens, and what is added to their logits
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

/// Of what a token is sampled.
struct Candidate {
  int64_t id = 0;
  double weight = 0;  ///< in proportion to its probability
};

/// The tokens that may follow, most likely first. Changes the logits ([vocabulary], any float dtype) in the order of
/// transformers: logit_bias, the repetition penalty on `text_ids`, the ids of the text so far, the frequency and
/// presence penalties on the last `num_made` of them, which were generated (as OpenAI's API documents them); then
/// temperature (0: one candidate), top_k, top_p, min_p and typical_p. Ties go to the smaller id. Throws NumericsError
/// if the largest logit is not finite, UsageError for a biased token that is not in the vocabulary.
std::vector<Candidate> candidates(const at::Tensor& logits, const SamplingOptions& options,
                                  std::span<const int64_t> text_ids = {}, size_t num_made = 0);

/// Samples one of the candidates for position `index` of the text. Depends only on the arguments. Throws as candidates.
int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, int64_t index,
                     std::span<const int64_t> text_ids = {}, size_t num_made = 0);

/// The logarithm of the softmax of the logits at `id`.
double log_probability(const at::Tensor& logits, int64_t id);

}  // namespace caravan
