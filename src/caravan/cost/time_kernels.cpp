#include "caravan/cost/time_kernels.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/comm/measure/sampling.h"
#include "caravan/comm/measure/statistics.h"
#include "caravan/comm/record.h"
#include "caravan/cost/nonnegative_fit.h"
#include "caravan/cost/torch_kernels.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/nn/product/product_tune.h"

namespace caravan {
namespace {

constexpr double kKernelBlock_s = 0.015;
constexpr int kRounds = 2;
constexpr double kStepBlock_s = 0.05;
constexpr double kQuickBlock_s = 0.1;
constexpr int64_t kFewestPasses = 3, kMostPasses = 20;
constexpr double kNoLimit = 1e18;  // FLOP/s of what takes no time

struct LayerShape {
  int64_t tokens, in, out;
};
/// Layers of small models, and some that no tile divides. Each has three products, of a few milliseconds at most:
/// longer ones are interrupted wherever other programs run.
constexpr LayerShape kLayerShapes[] = {{2048, 128, 512}, {512, 384, 1536}, {256, 768, 768}, {128, 384, 4096},
                                       {256, 256, 256},  {64, 512, 1024},  {200, 100, 300}};

/// Of the time of a deadline. Layers are most like a training step; links come last.
constexpr double kShareOfProducts = 0.3;
constexpr double kShareOfLayers = 0.45;

at::ScalarType type_of(const std::string& dtype) { return dtype == "bf16" ? at::kBFloat16 : at::kFloat; }

/// Numbers of the usual size: products of zeros may be faster.
at::Tensor spread_numbers(at::IntArrayRef sizes) {
  return at::linspace(-1, 1, c10::multiply_integers(sizes)).view(sizes);
}

/// Until `share` of the time is over.
std::vector<TimedProduct> time_products(Communicator& world, at::ScalarType type, const Deadline& deadline,
                                        double share) {
  std::vector<TimedProduct> timed;
  const auto add = [&](const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
    const double seconds = kernel_seconds(world, product_of_layer(a, b, kind));
    timed.push_back({a.size(0), b.size(0), a.size(1), seconds});
  };
  for (const auto& [tokens, in, out] : kLayerShapes) {
    if (!timed.empty() && !deadline.allows(0, share)) break;
    const at::Tensor x = spread_numbers({tokens, in}).to(type);
    const at::Tensor w = spread_numbers({out, in}).to(type);
    const at::Tensor dy = spread_numbers({tokens, out}).to(type);
    add(x, w, ProductKind::forward);
    add(dy, w.t(), ProductKind::dx);
    add(dy.t(), x.t(), ProductKind::dw);
  }
  return timed;
}

struct AttentionShape {
  int64_t batch, positions, heads, width;
};
constexpr AttentionShape kAttentionShapes[] = {{8, 128, 8, 32}, {2, 256, 8, 64}, {1, 512, 8, 64}};

/// Of causal attention. Libraries prepare each block of queries, which may take longer than its arithmetic.
void time_attention(Communicator& world, MeasuredKernels& own) {
  std::vector<std::array<double, 2>> forward, backward;  // FLOPs and rows, in parts of the time
  for (const auto& [batch, positions, heads, width] : kAttentionShapes) {
    const auto operand = [&] {
      return spread_numbers({batch, positions, heads, width}).to(type_of(own.dtype)).requires_grad_(true);
    };
    const at::Tensor q = operand(), k = operand(), v = operand(), dy = operand().detach();
    const double one_way = kernel_seconds(world, [&] { fused_attention(q, k, v, VisibleKeys::causal()); });
    const double both = kernel_seconds(world, [&] { fused_attention(q, k, v, VisibleKeys::causal()).backward(dy); });
    const double way_back = std::max(both - one_way, 0.1 * one_way);
    const auto rows = static_cast<double>(batch * heads * positions);
    const double product = rows * static_cast<double>(positions * width);  // half of its 2 FLOPs are masked
    forward.push_back({2 * product / one_way, rows / one_way});
    backward.push_back({5 * product / way_back, rows / way_back});
  }
  const std::vector<double> ones(forward.size(), 1.0);
  const auto cost_of = [&](const std::vector<std::array<double, 2>>& measured) {
    const auto [flop, row] = fit_nonnegative(measured, ones);
    // Rows alone may explain all of it.
    return AttentionCost{.flops = four_digits(flop > 0 ? 1 / flop : kNoLimit), .row_seconds = four_digits(row)};
  };
  own.attention = cost_of(forward);
  own.attention_backward = cost_of(backward);
}

class KernelList final : public KernelLog {
 public:
  void add(KernelWork work) override { kernels.push_back(std::move(work)); }
  std::vector<KernelWork> kernels;
};

/// Layers whose kernels are timed together.
struct StepShape {
  Architecture (*arch)();
  int64_t width, batch, context;
};
constexpr StepShape kStepShapes[] = {
    {Architecture::gpt2, 128, 2, 128},  {Architecture::gpt2, 192, 12, 128},
    {Architecture::gpt2, 512, 2, 256},  {Architecture::llama, 192, 4, 128},
    {Architecture::llama, 384, 4, 256}, {Architecture::gpt2, 1024, 1, 128}};  // its weights are in no cache

/// Of a pass on the slowest rank, which took `first` seconds at first. Nothing if it takes longer than `share` of the
/// time.
std::optional<double> pass_seconds(Communicator& world, const std::function<void()>& pass, double first,
                                   const Deadline& deadline, double share) {
  if (!deadline.is_given()) {
    return measure::time_calls(world, pass, 1, {.block_s = kStepBlock_s, .between = {}}).median_us * 1e-6;
  }
  measure::take_slowest(world, {&first, 1});
  const auto wanted = static_cast<int64_t>(kQuickBlock_s / first);
  const int64_t passes = std::clamp(wanted, kFewestPasses, kMostPasses);
  if (!deadline.allows(static_cast<double>(passes) * first, share)) return std::nullopt;
  std::vector<double> samples = measure::time_block(world, pass, passes, 1);
  measure::take_slowest(world, samples);
  return measure::quantile(samples, 0.25);  // of so few, what else the machine does may be the median
}

/// Forward and backward of two layers, their embedding and head. Nothing if it takes longer than `share` of the time.
std::optional<TimedStep> time_step(Communicator& world, const StepShape& shape, at::ScalarType type,
                                   const Deadline& deadline, double share) {
  if (!deadline.allows(0, share)) return std::nullopt;
  constexpr int64_t kLayers = 2, kHeadWidth = 32, kVocabulary = 512;
  ModelConfig config;
  config.arch = shape.arch();
  config.layers = kLayers;
  config.width = shape.width;
  config.heads = shape.width / kHeadWidth;
  config.context = shape.context;
  config.vocabulary = kVocabulary;
  const std::unique_ptr<Model> model = make_model(config);
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  Strategy strategy = whole_model(*model, alone);
  strategy.compute_dtype = type;
  Engine engine(*model, alone, std::move(strategy), Engine::Options{});
  const at::Tensor ids =
      at::arange(shape.batch * shape.context).remainder(kVocabulary).view({shape.batch, shape.context});
  const auto pass = [&] {
    engine.begin_step();
    model->run({ids, ids}, {}).front().backward();
    engine.finish_step();
  };
  KernelList list;
  const auto begin = std::chrono::steady_clock::now();
  {
    const KernelLogScope counted(&list);
    const TorchKernelScope operators;
    pass();
  }
  const std::chrono::duration<double> first = std::chrono::steady_clock::now() - begin;
  const auto seconds = pass_seconds(world, pass, std::max(first.count(), 1e-6), deadline, share);
  if (!seconds) return std::nullopt;
  const std::string what =
      fmt::format("{} of width {}, {} x {} tokens", shape.arch().name, shape.width, shape.batch, shape.context);
  return TimedStep{.what = what, .kernels = std::move(list.kernels), .seconds = *seconds};
}

/// Times of the same product or pass at different moments, by its number.
class Samples {
 public:
  void add(size_t number, double seconds) {
    if (of_.size() <= number) of_.resize(number + 1);
    of_[number].push_back(seconds);
  }
  double least(size_t number) const { return std::ranges::min(of_[number]); }
  double median(size_t number) const { return measure::quantile(of_[number], 0.5); }

 private:
  std::vector<std::vector<double>> of_;
};

}  // namespace

double four_digits(double value) { return value == 0 ? 0 : std::stod(fmt::format("{:.3e}", value)); }

double kernel_seconds(Communicator& world, const std::function<void()>& compute) {
  return measure::time_calls(world, compute, 1, {.block_s = kKernelBlock_s, .between = {}}).min_us * 1e-6;
}

bool Deadline::allows(double more, double share) const {
  if (seconds_ <= 0) return true;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
  double end = taken.count() + more;
  measure::take_slowest(world_, {&end, 1});
  return end <= share * seconds_;
}

std::vector<MeasuredKernels> time_kernels(Communicator& world, const HardwareDevice& device,
                                          const std::vector<std::string>& dtypes, const Deadline& deadline) {
  const int rounds = deadline.is_given() ? 1 : kRounds;
  std::vector<MeasuredKernels> all(dtypes.size());
  std::vector<Samples> of_products(dtypes.size()), of_steps(dtypes.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < dtypes.size(); ++i) {
      const double part = static_cast<double>(i + 1) / static_cast<double>(dtypes.size());
      all[i].dtype = dtypes[i];
      all[i].products = time_products(world, type_of(dtypes[i]), deadline, kShareOfProducts * part);
      for (size_t at = 0; at < all[i].products.size(); ++at) of_products[i].add(at, all[i].products[at].seconds);
    }
    for (size_t i = 0; i < dtypes.size(); ++i) {
      const double part = static_cast<double>(i + 1) / static_cast<double>(dtypes.size());
      all[i].steps.clear();
      for (const StepShape& shape : kStepShapes) {
        auto step = time_step(world, shape, type_of(dtypes[i]), deadline, kShareOfProducts + kShareOfLayers * part);
        if (!step) continue;
        of_steps[i].add(all[i].steps.size(), step->seconds);
        all[i].steps.push_back(std::move(*step));
      }
    }
  }
  for (size_t i = 0; i < dtypes.size(); ++i) {
    for (size_t at = 0; at < all[i].products.size(); ++at) all[i].products[at].seconds = of_products[i].least(at);
    for (size_t at = 0; at < all[i].steps.size(); ++at) all[i].steps[at].seconds = of_steps[i].median(at);
    time_attention(world, all[i]);
    all[i].fit = fit_product_rate(dtypes[i], device.units, device.launch_seconds, all[i].products);
  }
  return all;
}

}  // namespace caravan
