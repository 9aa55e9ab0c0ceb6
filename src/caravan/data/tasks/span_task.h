#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "caravan/data/tasks/window_task.h"
#include "caravan/data/tokenizer/tokenizer.h"

namespace caravan {

struct SpanRule {
  double rate = 0.15;      ///< of the tokens of a window that are taken out
  double mean_length = 3;  ///< of the spans
};

/// The lengths of a row of span corruption.
struct SpanLengths {
  int64_t window = 0;     ///< tokens of text
  int64_t num_noise = 0;  ///< of them taken out: round(rate window), at least 1, and one less than all at most
  int64_t num_spans = 0;  ///< round(num_noise / mean_length), at least 1
  int64_t source = 0;     ///< window - num_noise + num_spans + 1
  int64_t target = 0;     ///< num_noise + num_spans + 1
  bool operator==(const SpanLengths&) const = default;
};
SpanLengths span_lengths_of(int64_t window, const SpanRule& rule);
/// Those of the longest window whose source has `source` tokens: random_spans_helper of T5's preprocessors.py, without
/// its exception for a rate of 0.5, with which sources would be one token shorter. Throws ShapeError for source < 3.
SpanLengths span_lengths(int64_t source, const SpanRule& rule);

/// The span corruption of T5 (Raffel et al., arXiv 1910.10683, and random_spans_noise_mask of its preprocessors.py).
/// Source: the window, in which each span is replaced by a sentinel, <extra_id_0>, <extra_id_1>, .., and the end token.
/// Target: each sentinel and its span, and the end token. The window begins with text and ends with a span; the lengths
/// of spans, and of the texts between them, are random partitions of their sums.
///
/// A row is [source | decoder inputs, padded to `context`]: the inputs are `decoder_start` and the target without its
/// last token. Sources are full, so that rows have no documents.
class SpanTask final : public WindowTask {
 public:
  /// Throws UsageError for a tokenizer without an end token or with fewer sentinels than spans, ShapeError for a
  /// context shorter than the target, naming the context that it needs.
  SpanTask(const Tokenizer& tokenizer, int64_t source_context, int64_t context, const SpanRule& rule,
           int64_t decoder_start);

  RowShape shape() const override { return {.length = lengths_.source + context_, .num_sources = lengths_.source}; }
  int64_t window() const override { return lengths_.window; }
  void fill(std::span<const int64_t> window, uint64_t seed, int64_t sample, const RowBuffers& row) const override;
  std::optional<int64_t> num_targets() const override { return lengths_.target; }
  int64_t num_targets(std::span<const int64_t> /*window*/, uint64_t /*seed*/, int64_t /*sample*/) const override {
    return lengths_.target;
  }
  const SpanLengths& lengths() const noexcept { return lengths_; }

 private:
  SpanLengths lengths_;
  int64_t context_;
  int64_t start_;
  int64_t end_ = 0;
  int64_t pad_ = 0;
  std::vector<int64_t> sentinels_{};
};

}  // namespace caravan
