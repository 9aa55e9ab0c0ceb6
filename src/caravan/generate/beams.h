#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/generate/text_windows.h"

namespace caravan {

/// The search of the likeliest text, of which `beams` are continued side by side; as generate(num_beams=..,
/// do_sample=False) of transformers, with early_stopping=False. Without a model: it is given log probabilities.
class BeamSearch {
 public:
  struct Options {
    int64_t beams = 1;
    double length_penalty = 1;  ///< texts are compared by log probability / length^length_penalty
    int64_t num_tokens = 120;   ///< at most
    std::vector<int64_t> end_tokens{};
  };
  struct Beam {
    std::vector<int64_t> ids{};  ///< generated
    std::vector<double> log_probabilities{};
    float score = 0;    ///< of running beams their sum, of finished ones by length
    size_t parent = 0;  ///< of running beams: which one it continues
  };
  /// A token after a beam, and the score of both.
  struct Next {
    size_t beam = 0;
    int64_t token = 0;
    float score = 0;
    double log_probability = 0;
  };

  explicit BeamSearch(Options options) : options_(std::move(options)) {}

  const std::vector<Beam>& running() const noexcept { return running_; }
  bool is_done() const noexcept { return is_done_; }
  /// How many best ones of all continuations a step takes.
  size_t num_candidates() const noexcept;
  /// `best`: the num_candidates() best continuations of the running beams, best first.
  void step(std::span<const Next> best);
  /// The best text: with its end token, if it has one.
  const Beam& best() const { return finished_.front(); }

 private:
  Options options_;
  std::vector<Beam> running_{Beam{}};
  std::vector<Beam> finished_{};  ///< best first, options.beams at most
  bool can_improve_ = true;
  bool is_done_ = false;
};

/// The best continuation of `ids`, with the `source` of a model with an encoder, without its end token. Every rank of
/// the model calls it. Throws UsageError if ids and tokens exceed the context.
BeamSearch::Beam search_beams(TextWindows& windows, const std::vector<int64_t>& source, const std::vector<int64_t>& ids,
                              const BeamSearch::Options& options, double repetition_penalty);

}  // namespace caravan
