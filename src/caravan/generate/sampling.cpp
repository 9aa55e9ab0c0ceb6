#include "caravan/generate/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"

namespace caravan {
namespace {

/// The `kept` most likely ids, most likely first.
std::vector<int64_t> likeliest(const std::vector<float>& logits, int64_t kept) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), before);
  ids.resize(static_cast<size_t>(kept));
  return ids;
}

}  // namespace

void SamplingOptions::validate() const {
  const auto refuse = [](const char* key, double value, const char* action) {
    throw UsageError({"generate", key, fmt::format("{} is out of range", value), "", action});
  };
  if (!(temperature >= 0) || temperature > 100) refuse("temperature", temperature, "choose a value from 0 to 100");
  if (top_k < 0) refuse("top_k", static_cast<double>(top_k), "choose 1 or more, or 0 for all tokens");
  if (!(top_p > 0) || top_p > 1) refuse("top_p", top_p, "choose a value above 0, up to 1");
  // Beyond these a logit may leave the range of fp32.
  if (!(repetition_penalty >= 1e-3) || repetition_penalty > 1e3)
    refuse("repetition_penalty", repetition_penalty, "choose a value from 0.001 to 1000; 1: no penalty");
}

uint64_t sample_seed(uint64_t seed, int64_t sample) {
  if (sample == 0) return seed;
  const RandomStream stream(seed, "generate.sample", sample);
  return uint64_t{stream.bits(0)} << 32 | stream.bits(1);
}

void apply_repetition_penalty(std::span<float> logits, std::span<const int64_t> ids, double penalty) {
  if (penalty == 1) return;
  const auto factor = static_cast<float>(penalty);
  std::vector<bool> is_done(logits.size());
  for (const int64_t id : ids) {
    const auto i = static_cast<size_t>(id);
    if (is_done.at(i)) continue;
    is_done[i] = true;
    logits[i] = logits[i] < 0 ? logits[i] * factor : logits[i] / factor;
  }
}

int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, int64_t index,
                     std::span<const int64_t> text_ids) {
  const at::Tensor row = logits.to(at::kFloat).contiguous();
  std::vector<float> values(row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel());
  const auto size = static_cast<int64_t>(values.size());
  const bool has_order = std::none_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
  if (!has_order || !std::isfinite(*std::max_element(values.begin(), values.end()))) {
    throw NumericsError({"generate", "logits", "are not finite", "", "use an earlier checkpoint of the model"});
  }
  apply_repetition_penalty(values, text_ids, options.repetition_penalty);
  if (options.temperature == 0) return likeliest(values, 1).front();

  const std::vector<int64_t> ids = likeliest(values, options.top_k > 0 ? std::min(options.top_k, size) : size);
  std::vector<double> weights;
  const double largest = values[static_cast<size_t>(ids.front())];
  for (const int64_t id : ids) {
    weights.push_back(std::exp((values[static_cast<size_t>(id)] - largest) / options.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];

  std::array<float, 1> uniform{};
  RandomStream(options.seed, "generate").uniform(static_cast<uint64_t>(index), uniform);
  double rest = uniform[0] * kept;
  for (size_t i = 0; i < count; ++i) {
    rest -= weights[i];
    if (rest < 0) return ids[i];
  }
  return ids[count - 1];
}

}  // namespace caravan
