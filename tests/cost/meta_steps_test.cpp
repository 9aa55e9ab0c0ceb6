#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/nn/product/product.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/compression/compress_hook.h"
#include "caravan/techniques/compression/power_sgd.h"
#include "caravan/techniques/compression/top_k.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/cost/both_ways.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::meta_steps_test {
namespace {

constexpr int64_t kMicroBatches = 2, kRows = 4, kLength = 96;

struct Case {
  std::string name;
  int ranks;
  std::function<Strategy(Module&, Mesh&, at::ScalarType)> strategy;
  bool is_sgd = false;
  bool has_transfers = false;    ///< buffers that live until a message has arrived
  std::vector<AxisSize> axes{};  ///< empty: dp alone
  int64_t unknown = 0;           ///< bytes at most that depend on the tokens of a rank
  bool has_experts = false;
  bool has_dropout = true;
  RowNeeds needs{};
};

/// All experts take every token, so that the choice is known.
ModelConfig config_of(const Case& of, Architecture kind) {
  return {.arch = kind,
          .layers = 3,
          .width = 64,
          .heads = 4,
          .context = kLength,
          .vocabulary = 500,
          .tie_embeddings = kind == Architecture::gpt2(),
          .dropout = kind == Architecture::gpt2() && of.has_dropout ? 0.1 : 0,
          .moe = {.experts = of.has_experts ? 2 : 0}};
}

/// The bytes of a block's weights, or of the words.
int64_t largest_unit(const ModelConfig& config) {
  const int64_t of_block = config.width * (4 * config.width + 3 * config.hidden_width());
  return 4 * std::max(config.vocabulary * config.width, of_block);
}

/// Takes three steps; the last two are alike.
Taken taken_by(const Case& of, const std::shared_ptr<Communicator>& world, Architecture kind, at::ScalarType type,
               at::Device device) {
  Mesh mesh = Mesh::create(world, of.axes.empty() ? std::vector<AxisSize>{{"dp", of.ranks}} : of.axes);
  Model model(config_of(of, kind));
  TakenCounter counter;
  Engine engine(model, mesh, of.strategy(model, mesh, type), {.seed = 1, .device = device});
  counter.hold();
  std::unique_ptr<Optimizer> optimizer;
  if (of.is_sgd) {
    optimizer = std::make_unique<Sgd>(engine.state(), SgdOptions{.momentum = 0.9, .weight_decay = 0.1});
  } else {
    optimizer = std::make_unique<AdamW>(engine.state());
  }
  counter.hold();
  TrainStep step(engine, *optimizer, {.seed = 1, .num_micro_batches = kMicroBatches, .clip_norm = 0.1});
  const int64_t rows = kRows * kMicroBatches;
  const TrainBatch batch{.ids = at::ones({rows, kLength}, at::TensorOptions(at::kLong).device(device)),
                         .labels = at::ones({rows, kLength}, at::TensorOptions(at::kLong).device(device)),
                         .first_row = mesh["dp"].coord() * rows,
                         .global_rows = mesh["dp"].size() * rows,
                         .num_targets = mesh["dp"].size() * rows * kLength};
  for (int64_t i = 0; i < 3; ++i) {
    step.run(batch, i, 1e-3);
    counter.hold();
  }
  return counter.finish();
}

/// By rank.
std::map<int, Taken> taken_by_threads(const Case& of, Architecture kind, at::ScalarType type) {
  std::map<int, Taken> all;
  std::mutex mutex;
  run_thread_ranks(of.ranks, [&](const std::shared_ptr<Communicator>& world) {
    const Taken taken = taken_by(of, world, kind, type, at::kCPU);
    const std::lock_guard lock(mutex);
    Taken& own = all[world->rank()] = taken;
    own.paths.clear();
    for (const auto& [path, count] : taken.paths) {  // the name of the back-end is not of interest
      own.paths[path.starts_with("thread ") ? "record " + path.substr(7) : path] = count;
    }
  });
  return all;
}

Case ddp_with(const std::string& name, std::function<std::shared_ptr<CommHook>()> hook) {
  return {name, 2, [hook = std::move(hook)](Module& model, Mesh& mesh, at::ScalarType) {
            return ddp(model, mesh, {.hook = hook()});
          }};
}

/// Two ranks that split the layers.
Case split(const std::string& name, const std::string& axis, StrategyChoice choice, int64_t unknown = 0,
           bool has_experts = false, bool has_dropout = true) {
  choice.sequences = kRows;
  const auto strategy = [choice](Module& model, Mesh& mesh, at::ScalarType type) {
    StrategyChoice own = choice;
    own.compute_dtype = type;
    return make_strategy(own, model, mesh);
  };
  return {name, 2, strategy, false, false, {{"dp", 1}, {axis, 2}}, unknown, has_experts, has_dropout};
}

std::vector<Case> cases() {
  const auto with_ddp = [](Module& model, Mesh& mesh, at::ScalarType type) {
    return ddp(model, mesh, {.compute_dtype = type});
  };
  const auto with_zero = [](int stage, Share share) {
    return [=](Module& model, Mesh& mesh, at::ScalarType type) {
      return zero(model, mesh, {.stage = stage, .share = share, .compute_dtype = type});
    };
  };
  const auto with_fsdp = [](Share share) {
    return [=](Module& model, Mesh& mesh, at::ScalarType type) {
      return fsdp(model, mesh, {.share = share, .compute_dtype = type});
    };
  };
  // Masks of this rank's words, the last position of its tokens, and the number of keys that its queries see.
  const int64_t words = 2 * kRows * kLength * 8;
  const int64_t angles = 2 * kLength * 8 * 4;
  const int64_t weights = 8 * kRows * 4 * kLength / 2 * kLength / 4 * 4;
  return {{"one", 1, with_ddp},
          {"sgd", 1, with_ddp, true},
          {"ddp", 2, with_ddp},
          {"zero1", 2, with_zero(1, Share::off)},
          {"zero1shared", 2, with_zero(1, Share::on)},
          {"zero2", 2, with_zero(2, Share::off), false, true},
          {"zero2shared", 2, with_zero(2, Share::on), false, true},
          {"zero3", 2, with_fsdp(Share::off), false, true},
          {"zero3shared", 2, with_fsdp(Share::on), false, true},
          ddp_with("topk", [] { return std::make_shared<TopKHook>(0.1); }),
          ddp_with("powersgd", [] { return std::make_shared<PowerSgdHook>(2); }),
          split("tensor", "tp", {.tensor_parallel = tensor_of(2)}, words),
          split("sequence", "tp", {.tensor_parallel = tensor_of(2, "1d", {{"sequence", true}})}, words),
          split("recompute", "tp", {.tensor_parallel = tensor_of(2), .recompute = recompute_of("full")}, words),
          split("ring", "cp", {.context_parallel = context_of("ring", 2)}, angles, false, false),
          split("ringwithdropout", "cp", {.context_parallel = context_of("ring", 2)}, angles + weights),
          split("ulysses", "cp", {.context_parallel = context_of("ulysses", 2)}, angles),
          split("experts", "ep", {.expert_parallel = experts_of(2)}, 0, true)};
}

void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }

class MetaSteps : public ::testing::TestWithParam<Case> {};

TEST_P(MetaSteps, UseTheMemoryOfRealOnes) {
  GetParam().needs.check();
  const std::string chosen = products_in_use();
  use_products("mkl bf16=fp32 attention=fp32");  // whose memory is known to the byte
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const auto& [rank, real] : taken_by_threads(GetParam(), kind, type)) {
        const auto world = make_record_world(rank, GetParam().ranks, {.ranks_per_host = GetParam().ranks});
        const Taken meta = taken_by(GetParam(), world, kind, type, at::kMeta);
        const std::string what =
            fmt::format("{} of {} in {}, rank {}", GetParam().name, kind.name, c10::toString(type), rank);
        expect_same(real, meta, what,
                    {.unknown = GetParam().unknown,
                     .buffers = GetParam().has_transfers ? 3 * largest_unit(config_of(GetParam(), kind)) : 0});
      }
    }
  }
  use_products(chosen);
}

INSTANTIATE_TEST_SUITE_P(All, MetaSteps, ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::testing::meta_steps_test
