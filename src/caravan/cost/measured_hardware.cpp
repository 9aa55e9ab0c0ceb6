#include "caravan/cost/measured_hardware.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/comm/measure/cores.h"
#include "caravan/comm/measure/exercise.h"
#include "caravan/comm/measure/host.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/comm/measure/rates.h"
#include "caravan/comm/measure/sampling.h"
#include "caravan/comm/measure/statistics.h"
#include "caravan/comm/record.h"
#include "caravan/cost/process_memory.h"
#include "caravan/cost/torch_kernels.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

constexpr double kBlock_s = 0.015;
constexpr double kStepBlock_s = 0.05;
constexpr double kQuickBlock_s = 0.1;
constexpr int64_t kFewestPasses = 3, kMostPasses = 20;
/// Of 32 recipes on one and two ranks, all were within 12 % (bench/plan_accuracy.py), on one machine.
constexpr double kMeasuredTimeError = 0.15;
constexpr int64_t kCopyBytes = int64_t{64} << 20;  // more than the caches of a core hold
constexpr int64_t kMessageBytes = int64_t{4} << 20;

struct LayerShape {
  int64_t tokens, in, out;
};
/// Layers of small models, and some that no tile divides. Each has three products, of a few milliseconds at most:
/// longer ones are interrupted wherever other programs run.
constexpr LayerShape kLayerShapes[] = {{2048, 128, 512}, {512, 384, 1536}, {256, 768, 768}, {128, 384, 4096},
                                       {256, 256, 256},  {64, 512, 1024},  {200, 100, 300}};

/// Four digits: more is noise.
double four_digits(double value) { return value == 0 ? 0 : std::stod(fmt::format("{:.3e}", value)); }

/// Seconds of a computation on the slowest rank, while all ranks do it: the fastest sample, because others are of what
/// else the machine does.
double seconds_of(Communicator& world, const std::function<void()>& compute) {
  return measure::time_calls(world, compute, 1, {.block_s = kBlock_s, .between = {}}).min_us * 1e-6;
}

/// Numbers of the usual size: products of zeros may be faster.
at::Tensor spread_numbers(at::IntArrayRef sizes) {
  return at::linspace(-1, 1, c10::multiply_integers(sizes)).view(sizes);
}

/// The time that is left for a measurement; all ranks get the same answers.
class Deadline {
 public:
  Deadline(Communicator& world, double seconds) : world_(world), seconds_(seconds) {}

  bool is_given() const noexcept { return seconds_ > 0; }
  /// Whether a measurement of `more` seconds ends within this share of the time.
  bool allows(double more, double share = 1) const {
    if (seconds_ <= 0) return true;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
    double end = taken.count() + more;
    measure::take_slowest(world_, {&end, 1});
    return end <= share * seconds_;
  }

 private:
  Communicator& world_;
  double seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Of the time of a deadline. Layers are most like a training step; links come last.
constexpr double kShareOfProducts = 0.3;
constexpr double kShareOfLayers = 0.45;

/// Until `share` of the time is over.
std::vector<TimedProduct> time_products(Communicator& world, at::ScalarType type, const Deadline& deadline,
                                        double share) {
  std::vector<TimedProduct> timed;
  const auto add = [&](const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
    const double seconds = seconds_of(world, [&] { product(a, b, kind); });
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

/// FLOP/s of causal attention and its gradient in fp32.
double attention_flops(Communicator& world) {
  constexpr int64_t kHeads = 8, kPositions = 512, kWidth = 64;
  const auto operand = [] { return spread_numbers({1, kHeads, kPositions, kWidth}).requires_grad_(true); };
  const at::Tensor q = operand(), k = operand(), v = operand(), dy = operand().detach();
  const double seconds =
      seconds_of(world, [&] { fused_attention(q, k, v, std::nullopt, true).backward(dy, /*retain_graph=*/false); });
  return 7.0 * kHeads * kPositions * kPositions * kWidth / seconds;  // 2 + 5 products of 2 FLOPs, half of them masked
}

class KernelList final : public KernelLog {
 public:
  void add(KernelWork work) override { kernels.push_back(std::move(work)); }
  std::vector<KernelWork> kernels;
};

/// Layers whose kernels are timed together.
struct StepShape {
  ModelKind kind;
  int64_t width, batch, context;
};
constexpr StepShape kStepShapes[] = {{ModelKind::gpt2, 128, 2, 128},
                                     {ModelKind::gpt2, 192, 12, 128},
                                     {ModelKind::gpt2, 512, 2, 256},
                                     {ModelKind::llama, 192, 4, 128},
                                     {ModelKind::llama, 384, 4, 256}};

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
  config.kind = shape.kind;
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
      fmt::format("{} of width {}, {} x {} tokens", shape.kind == ModelKind::gpt2 ? "gpt2" : "llama", shape.width,
                  shape.batch, shape.context);
  return TimedStep{.what = what, .kernels = std::move(list.kernels), .seconds = *seconds};
}

/// Of an operation on a few numbers.
double launch_seconds(Communicator& world) {
  const at::Tensor a = spread_numbers({64});
  return seconds_of(world, [&] { at::add(a, a); });
}

/// A control group may allow less than the host has; 0: unknown.
int64_t memory_of(const measure::HostFacts& facts) {
  if (facts.memory_limit_bytes <= 0) return std::max<int64_t>(facts.memory_bytes, 0);
  return facts.memory_bytes <= 0 ? facts.memory_limit_bytes : std::min(facts.memory_bytes, facts.memory_limit_bytes);
}

}  // namespace

LinkLevel measure_link(Communicator& world) {
  const auto of = [&](Verb verb, int64_t bytes) {
    measure::Exercise exercise(world, {.verb = verb, .bytes = bytes});
    const auto call = [&] { exercise.call(); };
    const measure::SamplingOptions options{.block_s = kBlock_s, .between = {}};
    return measure::time_calls(world, call, exercise.calls_in_one(), options).median_us * 1e-6;
  };
  const double bytes = kMessageBytes;
  const double rate = bytes / of(Verb::send, kMessageBytes);
  const double reduced =
      bytes * measure::bus_factor(Verb::all_reduce, world.size()) / of(Verb::all_reduce, kMessageBytes);
  return {.devices = world.size(),
          .bytes_per_second = four_digits(rate),
          .latency_seconds = four_digits(of(Verb::recv, 8)),
          .fraction = four_digits(std::clamp(reduced / rate, 1e-3, 1.0))};
}

MeasuredHardware measure_hardware(Communicator& world, int threads, const std::string& date,
                                  const MeasureLimits& limits) {
  const Deadline deadline(world, limits.seconds);
  const measure::HostFacts facts = measure::read_host_facts();
  const int64_t memory = memory_of(facts) / world.size();
  const double ranks = world.size();
  const measure::MemoryRates rates = measure::measure_memory(world, kCopyBytes);
  HardwareDevice device{.name = facts.cpu.empty() ? "processor" : facts.cpu,
                        .alias = "cpu",
                        .units = threads,
                        .memory_bytes = std::max<int64_t>(memory, 2),
                        .reserved_bytes = std::min(kProcessBytes, std::max<int64_t>(memory, 2) / 2),
                        .memory_bytes_per_second = four_digits(std::min(rates.copy_gb_s, rates.add_gb_s) * 1e9 / ranks),
                        .launch_seconds = four_digits(launch_seconds(world)),
                        .host_bytes_per_second = four_digits(rates.copy_gb_s / 2 * 1e9 / ranks),
                        .time_error = kMeasuredTimeError,
                        .is_processor = true};
  MeasuredHardware measured;
  const auto type_of = [](const std::string& dtype) { return dtype == "bf16" ? at::kBFloat16 : at::kFloat; };
  const auto num_dtypes = static_cast<double>(limits.dtypes.size());
  for (const std::string& dtype : limits.dtypes) {
    const double share = kShareOfProducts * static_cast<double>(measured.products.size() + 1) / num_dtypes;
    MeasuredProducts products{.products = time_products(world, type_of(dtype), deadline, share)};
    products.fit = fit_product_rate(dtype, threads, device.launch_seconds, products.products);
    products.fit.rate.flops = four_digits(products.fit.rate.flops);
    device.products.push_back(products.fit.rate);
    measured.products.push_back(std::move(products));
  }
  device.attention_fraction =
      four_digits(std::clamp(attention_flops(world) / device.products.front().flops, 1e-3, 1.0));
  for (size_t i = 0; i < measured.products.size(); ++i) {
    ProductRate& rate = device.products[i];
    MeasuredProducts& own = measured.products[i];
    const double share = kShareOfProducts + kShareOfLayers * static_cast<double>(i + 1) / num_dtypes;
    for (const StepShape& shape : kStepShapes) {
      std::optional<TimedStep> step = time_step(world, shape, type_of(rate.dtype), deadline, share);
      if (step) own.steps.push_back(std::move(*step));
    }
    own.step_fit = fit_kernels(device, rate.dtype, own.steps);
    rate.kernel_seconds = four_digits(own.step_fit.kernel_seconds);
    rate.kernel_bytes_per_second = four_digits(own.step_fit.kernel_bytes_per_second);
  }
  LinkLevel level{.name = "host", .devices = 1, .bytes_per_second = device.memory_bytes_per_second};
  if (world.size() > 1) {
    const measure::PinnedThread pinned(measure::usable_cores(), world.rank());
    level = measure_link(world);
    level.name = "host";
  }
  // The memory of the host is that of the devices: there is no other to offload to.
  measured.hardware = {.name = facts.name,
                       .source = fmt::format("measured {} on {}", date, facts.name),
                       .devices = {device},
                       .hosts = {{.device = "cpu",
                                  .devices = world.size(),
                                  .copy_bytes_per_second = four_digits(rates.copy_gb_s / 2 * 1e9)}},
                       .levels = {level}};
  return measured;
}

}  // namespace caravan
