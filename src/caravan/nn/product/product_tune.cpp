#include "caravan/nn/product/product_tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/system/processor.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/nn/product/product.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kWorthIt = 1.03;  ///< noise must not change the bits of the next run
constexpr int kMostSamples = 9;
constexpr int kFewestSamples = 2;
constexpr std::chrono::milliseconds kPatience{600};  ///< for one shape: emulated bf16 takes a second a product

struct Shape {
  int64_t tokens, in, out;
};
/// Layers of models of width 128, 384 and 768, and a head with a chunk of the tokens.
constexpr Shape kShapes[] = {{2048, 128, 512}, {1024, 384, 1536}, {512, 768, 768}, {512, 768, 3072}, {256, 384, 8192}};

struct AttentionShape {
  int64_t batch, heads, positions, width;
};
constexpr AttentionShape kAttentionShapes[] = {{16, 4, 128, 32}, {4, 6, 256, 64}, {1, 12, 512, 64}};

struct Task {
  double gflop;
  std::function<void()> run;
};

double median(std::vector<double>& samples) {
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

/// The rate of each way, a change of `base`, as the geometric mean over the tasks, of medians. The ways alternate.
ProductTiming time_ways(std::string what, const std::vector<std::string>& ways, const ProductChoice& base,
                        const std::vector<Task>& tasks) {
  const std::vector<ProductLibrary> available = available_product_libraries();
  std::vector<std::string> choices;
  for (const std::string& way : ways) choices.push_back(to_text(parse_product_choice(way, base, available)));
  std::vector<double> logs(ways.size(), 0);
  for (const Task& task : tasks) {
    std::vector<std::vector<double>> seconds(ways.size());
    const auto begin = Clock::now();
    for (int sample = -1; sample < kMostSamples; ++sample) {  // the first warms up
      if (sample >= kFewestSamples && Clock::now() - begin > kPatience) break;
      for (size_t way = 0; way < ways.size(); ++way) {
        use_products(choices[way]);
        const auto start = Clock::now();
        task.run();
        const std::chrono::duration<double> took = Clock::now() - start;
        if (sample >= 0) seconds[way].push_back(took.count());
      }
    }
    for (size_t way = 0; way < ways.size(); ++way) logs[way] += std::log(task.gflop / median(seconds[way]));
  }
  ProductTiming timing{.what = std::move(what)};
  for (size_t way = 0; way < ways.size(); ++way) {
    timing.ways.push_back({ways[way], std::exp(logs[way] / static_cast<double>(tasks.size()))});
    if (timing.ways[way].gflops > kWorthIt * timing.ways[timing.best].gflops) timing.best = way;
  }
  return timing;
}

std::vector<Task> products_of(ProductKind kind, at::ScalarType type) {
  std::vector<Task> tasks;
  for (const auto& [tokens, in, out] : kShapes) {
    const at::Tensor x = at::randn({tokens, in}).to(type);
    const at::Tensor w = at::randn({out, in}).to(type);
    const at::Tensor dy = at::randn({tokens, out}).to(type);
    const at::Tensor a = kind == ProductKind::forward ? x : kind == ProductKind::dx ? dy : dy.t();
    const at::Tensor b = kind == ProductKind::forward ? w : kind == ProductKind::dx ? w.t() : x.t();
    const auto gflop = 2e-9 * static_cast<double>(tokens * in * out);
    tasks.push_back({gflop, product_of_layer(a, b, kind)});
  }
  return tasks;
}

std::vector<Task> attentions() {
  std::vector<Task> tasks;
  for (const auto& [batch, heads, positions, width] : kAttentionShapes) {
    const auto operand = [&, b = batch, h = heads, p = positions, d = width] {
      return at::randn({b, p, h, d}).to(at::kBFloat16).requires_grad_(true);
    };
    const auto q = operand(), k = operand(), v = operand(), dy = operand().detach();
    const auto gflop = 7e-9 * static_cast<double>(batch * heads * positions * positions * width);  // half is masked
    tasks.push_back(
        {gflop, [=] { fused_attention(q, k, v, VisibleKeys::causal()).backward(dy, /*retain_graph=*/true); }});
  }
  return tasks;
}

}  // namespace

std::function<void()> product_of_layer(const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
  if (kind != ProductKind::dw) return [=] { product(a, b, kind); };
  return [=, sum = at::zeros({a.size(0), b.size(0)})]() mutable { add_product(sum, /*is_empty=*/false, a, b, kind); };
}

TunedProducts tune_products() {
  const std::string before = products_in_use();
  const std::vector<ProductLibrary> available = available_product_libraries();
  TunedProducts tuned{.choice = product_rule(processor_class(), available)};
  const auto decide = [&](const std::string& what, const std::string& key, std::string_view of_rule,
                          const std::vector<std::string>& values, const std::vector<Task>& tasks) {
    std::vector<std::string> ways{fmt::format("{}={}", key, of_rule)};
    for (const std::string& value : values) {
      if (value != of_rule) ways.push_back(fmt::format("{}={}", key, value));
    }
    tuned.timings.push_back(time_ways(what, ways, tuned.choice, tasks));
    const ProductTiming& timing = tuned.timings.back();
    tuned.choice = parse_product_choice(timing.ways[timing.best].text, tuned.choice, available);
  };
  std::vector<std::string> libraries;
  for (const ProductLibrary library : available) libraries.emplace_back(name(library));
  for (const ProductKind kind : {ProductKind::forward, ProductKind::dx, ProductKind::dw}) {
    const std::string key(name(kind));
    decide("fp32 " + key, key, name(tuned.choice.library(kind)), libraries, products_of(kind, at::kFloat));
  }
  std::vector<Task> bf16;
  for (const ProductKind kind : {ProductKind::forward, ProductKind::dx, ProductKind::dw}) {
    for (Task& task : products_of(kind, at::kBFloat16)) bf16.push_back(std::move(task));
  }
  decide("bf16 products", "bf16", name(tuned.choice.bf16), {"native", "fp32"}, bf16);
  if (!has_bf16_tiles()) tuned.choice.attention = Bf16Arithmetic::fp32;
  const std::vector<std::string> of_attention =
      has_bf16_tiles() ? std::vector<std::string>{"native", "fp32"} : std::vector<std::string>{"fp32"};
  decide("bf16 attention", "attention", name(tuned.choice.attention), of_attention, attentions());
  use_products(before);
  return tuned;
}

}  // namespace caravan
