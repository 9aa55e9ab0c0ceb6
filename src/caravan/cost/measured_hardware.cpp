#include "caravan/cost/measured_hardware.h"

#include <algorithm>
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

std::vector<TimedProduct> time_products(Communicator& world, at::ScalarType type) {
  std::vector<TimedProduct> timed;
  const auto add = [&](const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
    const double seconds = seconds_of(world, [&] { product(a, b, kind); });
    timed.push_back({a.size(0), b.size(0), a.size(1), seconds});
  };
  for (const auto& [tokens, in, out] : kLayerShapes) {
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

/// Forward and backward of two layers, their embedding and head.
TimedStep time_step(Communicator& world, const StepShape& shape, at::ScalarType type) {
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
  {
    const KernelLogScope counted(&list);
    const TorchKernelScope operators;
    pass();
  }
  return {.what = fmt::format("{} of width {}, {} x {} tokens", shape.kind == ModelKind::gpt2 ? "gpt2" : "llama",
                              shape.width, shape.batch, shape.context),
          .kernels = std::move(list.kernels),
          .seconds = measure::time_calls(world, pass, 1, {.block_s = kStepBlock_s, .between = {}}).median_us * 1e-6};
}

/// Of an operation on a few numbers.
double launch_seconds(Communicator& world) {
  const at::Tensor a = spread_numbers({64});
  return seconds_of(world, [&] { at::add(a, a); });
}

/// The link between the ranks of the host, each of which sends to the next.
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
  return {.name = "host",
          .devices = world.size(),
          .bytes_per_second = four_digits(rate),
          .latency_seconds = four_digits(of(Verb::recv, 8)),
          .fraction = four_digits(std::clamp(reduced / rate, 1e-3, 1.0))};
}

/// A control group may allow less than the host has; 0: unknown.
int64_t memory_of(const measure::HostFacts& facts) {
  if (facts.memory_limit_bytes <= 0) return std::max<int64_t>(facts.memory_bytes, 0);
  return facts.memory_bytes <= 0 ? facts.memory_limit_bytes : std::min(facts.memory_bytes, facts.memory_limit_bytes);
}

}  // namespace

MeasuredHardware measure_hardware(Communicator& world, int threads, const std::string& date) {
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
  for (const auto& [dtype, type] : {std::pair("fp32", at::kFloat), std::pair("bf16", at::kBFloat16)}) {
    MeasuredProducts products{.products = time_products(world, type)};
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
    const at::ScalarType type = rate.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
    for (const StepShape& shape : kStepShapes) own.steps.push_back(time_step(world, shape, type));
    own.step_fit = fit_kernels(device, rate.dtype, own.steps);
    rate.kernel_seconds = four_digits(own.step_fit.kernel_seconds);
    rate.kernel_bytes_per_second = four_digits(own.step_fit.kernel_bytes_per_second);
  }
  LinkLevel level{.name = "host", .devices = 1, .bytes_per_second = device.memory_bytes_per_second};
  if (world.size() > 1) {
    const measure::PinnedThread pinned(measure::usable_cores(), world.rank());
    level = measure_link(world);
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
