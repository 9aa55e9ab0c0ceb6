#include "caravan/data/tasks/span_task.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/data/tasks/sequence_pair.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

/// Python's round: half to even.
int64_t rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

/// The lengths of `parts` parts of `count` items, each at least 1: all partitions are equally likely.
std::vector<int64_t> random_partition(int64_t count, int64_t parts, uint64_t seed, const char* name, int64_t sample) {
  const RandomPermutation order(seed, name, sample, static_cast<uint64_t>(count - 1));
  std::vector<int64_t> ends;
  for (int64_t i = 0; i + 1 < parts; ++i) ends.push_back(static_cast<int64_t>(order(static_cast<uint64_t>(i))) + 1);
  std::ranges::sort(ends);
  ends.push_back(count);
  for (size_t i = ends.size() - 1; i > 0; --i) ends[i] -= ends[i - 1];
  return ends;
}

}  // namespace

SpanLengths span_lengths_of(int64_t window, const SpanRule& rule) {
  SpanLengths lengths{.window = window};
  lengths.num_noise =
      std::clamp<int64_t>(rounded(static_cast<double>(window) * rule.rate), 1, std::max<int64_t>(window - 1, 1));
  lengths.num_spans = std::max<int64_t>(rounded(static_cast<double>(lengths.num_noise) / rule.mean_length), 1);
  // Each span follows some text.
  lengths.num_spans = std::min(lengths.num_spans, std::max<int64_t>(window - lengths.num_noise, 1));
  lengths.source = window - lengths.num_noise + lengths.num_spans + 1;
  lengths.target = lengths.num_noise + lengths.num_spans + 1;
  return lengths;
}

SpanLengths span_lengths(int64_t source, const SpanRule& rule) {
  if (source < 3) {
    throw ShapeError({"data", "model.source_context", fmt::format("is {} tokens", source), "",
                      "use at least 3: a token, a sentinel and the end"});
  }
  int64_t window = 2;
  while (span_lengths_of(window + 1, rule).source <= source) ++window;
  return span_lengths_of(window, rule);
}

SpanTask::SpanTask(const Tokenizer& tokenizer, int64_t source_context, int64_t context, const SpanRule& rule,
                   int64_t decoder_start)
    : lengths_(span_lengths(source_context, rule)),
      context_(context),
      start_(decoder_start),
      end_(end_token(tokenizer, "spans")),
      pad_(filling_token(tokenizer)) {
  if (lengths_.source != source_context) {
    throw ShapeError(
        {"data", "model.source_context",
         fmt::format("is {}, but with data.mask_rate {} and data.span_length {} no text leaves a source of "
                     "so many tokens",
                     source_context, rule.rate, rule.mean_length),
         "", fmt::format("use {} or {}", lengths_.source, span_lengths_of(lengths_.window + 1, rule).source)});
  }
  if (lengths_.target > context) {
    throw ShapeError({"data", "model.context",
                      fmt::format("is {}, but sources of {} tokens leave targets of {}: {} tokens, {} sentinels and "
                                  "the end",
                                  context, source_context, lengths_.target, lengths_.num_noise, lengths_.num_spans),
                      "", fmt::format("use at least {}, or a smaller model.source_context", lengths_.target)});
  }
  for (int64_t i = 0; i < lengths_.num_spans; ++i) {
    const std::optional<int32_t> id = tokenizer.id_of(fmt::format("<extra_id_{}>", i));
    if (!id) {
      throw UsageError({"data", "data.task",
                        fmt::format("\"spans\" marks {} spans by <extra_id_0> to <extra_id_{}>, and the tokenizer has "
                                    "no <extra_id_{}>",
                                    lengths_.num_spans, lengths_.num_spans - 1, i),
                        "", "use a tokenizer with more of them, as T5's, or a smaller model.source_context"});
    }
    sentinels_.push_back(*id);
  }
}

void SpanTask::fill(std::span<const int64_t> window, uint64_t seed, int64_t sample, const RowBuffers& row) const {
  const int64_t num_text = lengths_.window - lengths_.num_noise;
  const auto texts = random_partition(num_text, lengths_.num_spans, seed, "data.spans.text", sample);
  const auto spans = random_partition(lengths_.num_noise, lengths_.num_spans, seed, "data.spans.noise", sample);
  std::vector<int64_t> source, target;
  auto at = window.begin();
  for (size_t i = 0; i < sentinels_.size(); ++i) {
    source.insert(source.end(), at, at + texts[i]);
    source.push_back(sentinels_[i]);
    at += texts[i];
    target.push_back(sentinels_[i]);
    target.insert(target.end(), at, at + spans[i]);
    at += spans[i];
  }
  source.push_back(end_);
  target.push_back(end_);
  fill_sequence_pair(source, target, {.num_sources = lengths_.source, .start = start_, .pad = pad_}, row);
}

}  // namespace caravan
