#pragma once

#include <cstdint>
#include <span>

#include "caravan/data/token_file.h"

namespace caravan {

inline constexpr int64_t kNoTarget = -100;  ///< the label of a token without a target; nn's kIgnoredLabel

/// The order in which training goes over a text: sample k, k = step * global_batch + row of the global batch, is a
/// window of context + 1 tokens. A pure function of (num_tokens, context, seed, k): ranks, accumulation and restarts
/// change nothing.
///
/// An epoch cuts the text into windows that share no target, begun at a phase of its own, and goes over each of them
/// once in an order of its own. What the windows of one phase leave out at both ends (less than two windows) another
/// epoch has.
class Sampler {
 public:
  /// Throws DataError for a text shorter than context + 1 tokens, naming both numbers; ShapeError for context < 1.
  Sampler(int64_t num_tokens, int64_t context, uint64_t seed);

  int64_t context() const noexcept { return context_; }
  int64_t windows_per_epoch() const noexcept { return num_windows_; }

  /// First token of the window of sample k >= 0; the window is tokens [offset, offset + context + 1).
  int64_t offset(int64_t sample) const;

  /// The position of a run as checkpoints keep it: tokens trained on by all ranks together before sample k.
  int64_t position(int64_t sample) const noexcept { return sample * context_; }
  /// The next sample of a run at `position`. Throws DataError if no sample begins there: a position of another context.
  int64_t sample_at(int64_t position) const;

 private:
  int64_t context_;
  uint64_t seed_;
  int64_t num_windows_;
  int64_t num_phases_;
};

/// Rows of a batch: row r gets sample first_sample + r.
///   input_ids, labels   [rows, context], row-major, of equal size; labels[r, t] is the token behind input_ids[r, t]
/// Throws ShapeError if the sizes are not rows * context.
void fill_batch(const TokenFile& tokens, const Sampler& sampler, int64_t first_sample, std::span<int64_t> input_ids,
                std::span<int64_t> labels);

/// The windows of an evaluation: every token but the first is the target of exactly one of them, given at most
/// `context` tokens before it.
class ValidationWindows {
 public:
  /// Throws DataError for a text of less than 2 tokens; ShapeError for context < 1. `tokens` outlives the windows.
  ValidationWindows(const TokenFile& tokens, int64_t context);

  int64_t size() const noexcept { return (num_targets() + context_ - 1) / context_; }
  int64_t num_targets() const noexcept { return tokens_.size() - 1; }
  /// bits per byte = nats over all targets / ln 2 / text_bytes.
  int64_t text_bytes() const noexcept { return tokens_.info().text_bytes; }

  /// Rows first .. of the windows, as fill_batch; the last window is filled up with token 0 and kNoTarget, and so are
  /// rows behind it, so that every rank can have as many.
  void fill(int64_t first_window, std::span<int64_t> input_ids, std::span<int64_t> labels) const;

 private:
  const TokenFile& tokens_;
  int64_t context_;
};

}  // namespace caravan
