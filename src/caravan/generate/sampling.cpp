#include "caravan/generate/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/kernels.h"

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

double total_of(const std::vector<Candidate>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0,
                         [](double sum, const Candidate& one) { return sum + one.weight; });
}

void add_bias(std::vector<float>& logits, const SamplingOptions& options) {
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= static_cast<int64_t>(logits.size())) {
      throw UsageError({"generate", "logit_bias", fmt::format("token {} is not among {}", id, logits.size()), "",
                        fmt::format("use 0 to {}", logits.size() - 1)});
    }
    logits[static_cast<size_t>(id)] += static_cast<float>(bias);
  }
}

void subtract_penalties(std::vector<float>& logits, const SamplingOptions& options, std::span<const int64_t> made) {
  if (options.frequency_penalty == 0 && options.presence_penalty == 0) return;
  std::map<int64_t, int64_t> counts;
  for (const int64_t id : made) ++counts[id];
  for (const auto& [id, count] : counts) {
    logits[static_cast<size_t>(id)] -=
        static_cast<float>(static_cast<double>(count) * options.frequency_penalty + options.presence_penalty);
  }
}

/// Keeps the tokens whose -log p is closest to its mean, until their probabilities reach `mass`, and those that are
/// equally close; in their order.
void keep_typical(std::vector<Candidate>& all, double mass) {
  const double total = total_of(all);
  std::vector<std::pair<double, double>> apart;  // distance, probability
  double entropy = 0;
  for (const Candidate& one : all) {
    const double p = one.weight / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  const auto distance = [&](const Candidate& one) { return std::abs(-std::log(one.weight / total) - entropy); };
  for (const Candidate& one : all) apart.emplace_back(distance(one), one.weight / total);
  std::ranges::stable_sort(apart, {}, &std::pair<double, double>::first);
  double sum = 0;
  size_t count = 0;  // of those that stay below the mass; the next one reaches it
  while (count + 1 < apart.size() && (sum += apart[count].second) < mass) ++count;
  const double most = apart[count].first;
  std::erase_if(all, [&](const Candidate& one) { return distance(one) > most; });
}

}  // namespace

void SamplingOptions::validate() const {
  const auto refuse = [](const char* key, double value, const char* action) {
    throw UsageError({"generate", key, fmt::format("{} is out of range", value), "", action});
  };
  if (!(temperature >= 0) || temperature > 100) refuse("temperature", temperature, "choose a value from 0 to 100");
  if (top_k < 0) refuse("top_k", static_cast<double>(top_k), "choose 1 or more, or 0 for all tokens");
  if (!(top_p > 0) || top_p > 1) refuse("top_p", top_p, "choose a value above 0, up to 1");
  if (!(min_p >= 0) || min_p > 1) refuse("min_p", min_p, "choose a value from 0 to 1; 0: all tokens");
  if (!(typical_p > 0) || typical_p > 1) refuse("typical_p", typical_p, "choose a value above 0, up to 1: all tokens");
  for (const auto& [key, value] :
       {std::pair{"frequency_penalty", frequency_penalty}, {"presence_penalty", presence_penalty}}) {
    if (!(std::abs(value) <= 2)) refuse(key, value, "choose a value from -2 to 2; 0: no penalty");
  }
  for (const auto& [id, bias] : logit_bias) {
    if (!(std::abs(bias) <= 100)) refuse("logit_bias", bias, "choose a value from -100 to 100");
  }
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

std::vector<Candidate> candidates(const at::Tensor& logits, const SamplingOptions& options,
                                  std::span<const int64_t> text_ids, size_t num_made) {
  const at::Tensor row = logits.to(at::kFloat).contiguous();
  std::vector<float> values(row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel());
  const auto size = static_cast<int64_t>(values.size());
  bool has_order = true;
  for (const float x : values) has_order &= x == x;
  const auto largest_of = [&] { return static_cast<float>(kernels::row_max(values.data(), size)); };
  if (!has_order || !std::isfinite(largest_of())) {
    throw NumericsError({"generate", "logits", "are not finite", "", "use an earlier checkpoint of the model"});
  }
  add_bias(values, options);
  apply_repetition_penalty(values, text_ids, options.repetition_penalty);
  subtract_penalties(values, options, text_ids.last(num_made));
  if (options.temperature == 0) return {{std::ranges::find(values, largest_of()) - values.begin(), 1.0}};

  std::vector<Candidate> kept;
  for (const int64_t id : likeliest(values, options.top_k > 0 ? std::min(options.top_k, size) : size)) {
    kept.push_back({id, values[static_cast<size_t>(id)]});
  }
  const double largest = kept.front().weight;
  for (Candidate& one : kept) one.weight = std::exp((one.weight - largest) / options.temperature);
  const double total = total_of(kept);
  double sum = 0;
  size_t count = 0;
  while (count < kept.size() && (count == 0 || sum < options.top_p * total)) sum += kept[count++].weight;
  while (count > 1 && kept[count - 1].weight < options.min_p * kept.front().weight) --count;
  kept.resize(count);
  if (options.typical_p < 1) keep_typical(kept, options.typical_p);
  return kept;
}

int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, int64_t index,
                     std::span<const int64_t> text_ids, size_t num_made) {
  const std::vector<Candidate> from = candidates(logits, options, text_ids, num_made);
  if (from.size() == 1) return from.front().id;
  std::array<float, 1> uniform{};
  RandomStream(options.seed, "generate").uniform(static_cast<uint64_t>(index), uniform);
  double rest = uniform[0] * total_of(from);
  for (const Candidate& one : from) {
    rest -= one.weight;
    if (rest < 0) return one.id;
  }
  return from.back().id;
}

double log_probability(const at::Tensor& logits, int64_t id) {
  const at::Tensor row = logits.contiguous();
  double result = 0;
  with_dtype("generate", row.scalar_type(), [&]<class T>(T) {
    T* values = data_of<T>(row);
    const double largest = kernels::row_max(values, row.numel());
    const double sum = kernels::row_exponentials(values, row.numel(), largest, /*keep=*/false);
    result = kernels::element(values, id) - largest - std::log(sum);
  });
  return result;
}

}  // namespace caravan
