#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/engine/engine.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/models/model.h"
#include "caravan/optim/optimizer.h"
#include "caravan/redistribute/whole.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/data/support.h"
#include "tests/engine/parameters.h"
#include "tests/techniques/together/technique.h"

/// Models on many ranks, and their gradients, for optimizers that know matrices.
namespace caravan::testing::matrices {

using Tensors = std::map<std::string, at::Tensor>;
using Specs = std::vector<Parameters::Spec>;

// Odd, tall and wide ones; rows and matrices fewer than ranks; vectors; experts; a table; one that is not trained.
inline Specs odd_shapes() {
  return {{"odd", {5, 7}}, {"bias", {7}, false}, {"tall", {33, 3}}, {"wide", {3, 33}},  {"small", {2, 3}},
          {"row", {1, 9}}, {"scale", {}, false}, {"v", {33}},       {"cube", {2, 3, 4}}};
}

using Arrange = std::function<Strategy(Module&, const Mesh&)>;

inline std::map<std::string, Arrange> data_parallel() {
  return {
      {"ddp", [](Module& model, const Mesh& mesh) { return ddp(model, mesh, {}); }},
      {"zero1", [](Module& model, const Mesh& mesh) { return zero(model, mesh, {.stage = 1}); }},
      {"zero2", [](Module& model, const Mesh& mesh) { return zero(model, mesh, {.stage = 2, .share = Share::off}); }},
      {"zero3", [](Module& model, const Mesh& mesh) { return fsdp(model, mesh, {.share = Share::off}); }}};
}

struct Layers {
  std::string name;
  Axes axes;
  StrategyChoice choice{};
  int64_t experts = 0;
};

inline Setting shards(const std::string& name, const Values& more = {}) {
  Values values{{"share", "off"}};
  values.insert(values.end(), more.begin(), more.end());
  return technique_of(name, values);
}

inline std::vector<Layers> layouts() {
  return {
      {"one", {{"dp", 1}}},
      {"hsdp", {{"dp", 4}}, {.data_parallel = technique_of("hsdp", {{"shard", 2}})}},
      {"replicas", {{"dp", 2}}, {.data_parallel = technique_of("replicas")}},
      {"tp", {{"dp", 1}, {"tp", 2}}, {.tensor_parallel = tensor_of(2)}},
      {"ddp x tp", {{"dp", 2}, {"tp", 2}}, {.tensor_parallel = tensor_of(2)}},
      {"zero1 x tp", {{"dp", 2}, {"tp", 2}}, {.data_parallel = shards("zero1"), .tensor_parallel = tensor_of(2)}},
      {"zero3 x tp", {{"dp", 2}, {"tp", 2}}, {.data_parallel = shards("zero3"), .tensor_parallel = tensor_of(2)}},
      {"zero3 of 3", {{"dp", 3}}, {.data_parallel = shards("zero3")}},
      {"2d", {{"dp", 1}, {"tp", 4}}, {.tensor_parallel = tensor_of(4, "2d")}},
      {"zero3 x cp",
       {{"dp", 2}, {"cp", 2}},
       {.data_parallel = shards("zero3"), .context_parallel = context_of("ring", 2)}},
      {"experts", {{"dp", 2}}, {}, 4},
      {"zero3 x ep", {{"dp", 2}, {"ep", 2}}, {.data_parallel = shards("zero3"), .expert_parallel = experts_of(2)}, 4},
      {"ddp x ep x tp",
       {{"dp", 1}, {"ep", 2}, {"tp", 2}},
       {.tensor_parallel = tensor_of(2), .expert_parallel = experts_of(2)},
       4},
      {"pp", {{"dp", 1}, {"pp", 2}}, {.pipeline = pipeline_of("1f1b", 2)}},
      {"pp x zero3", {{"dp", 2}, {"pp", 2}}, {.data_parallel = shards("zero3"), .pipeline = pipeline_of("1f1b", 2)}},
      {"pp x ddp", {{"pp", 2}, {"dp", 2}}, {.pipeline = pipeline_of("1f1b", 2)}}};
}

inline ModelConfig config_of(const Layers& of, const Architecture& kind) {
  return {.arch = kind,
          .layers = 2,
          .width = 16,
          .heads = 4,
          .kv_heads = kind == Architecture::llama() ? 2 : 0,
          .context = 8,
          .vocabulary = 24,
          .tie_embeddings = kind == Architecture::gpt2(),
          .moe = {.experts = of.experts}};
}

inline void with_layers(const Layers& of, const ModelConfig& config, const std::function<void(Engine&)>& body) {
  on_mesh(of.axes, [&](const Mesh& world) {
    Mesh mesh = world;
    Model model(config);
    StrategyChoice choice = of.choice;
    choice.sequences = 4;
    Engine engine(model, mesh, make_strategy(choice, model, mesh), {.seed = 5});
    body(engine);
  });
}

inline at::Tensor gradient_of(const Parameter& parameter, int step) {
  uint64_t seed = 17 + static_cast<uint64_t>(step);
  for (const char letter : parameter.name()) seed = seed * 31 + static_cast<uint64_t>(letter);
  return random_tensor(parameter.global_shape(), seed % 100'000).to(at::kFloat);
}

/// `of`: as gradient_of.
inline void set_gradients(Engine& engine, int step, at::Tensor (*of)(const Parameter&, int) = gradient_of) {
  FlatState& state = engine.state();
  for (const Slot& slot : state.layout.slots()) {
    const Parameter& parameter = *slot.parameter;
    if (!parameter.requires_grad()) continue;
    const at::Tensor piece = piece_of(of(parameter, step), parameter.sharded_layout(), engine.mesh());
    state.layout.write(state.gradients, parameter, piece.to(state.gradients.scalar_type()));
  }
}

inline Tensors whole_values(Engine& engine) {
  const at::NoGradGuard no_grad;
  Tensors all;
  for (const Slot& slot : engine.state().layout.slots()) {
    const Parameter& parameter = *slot.parameter;
    all[parameter.name()] =
        whole_tensor(parameter.sharded().detach(), parameter.sharded_layout(), engine.mesh(), parameter.name())
            .to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  return all;
}

struct Measured {
  int64_t sent = 0;
  int64_t peak = 0;
  int64_t held = 0;
};

/// Of the second step.
inline Measured measured(Optimizer& optimizer, const Mesh& mesh, double lr) {
  MemoryCounter& memory = MemoryCounter::current();
  Measured of;
  for (int step = 0; step < 2; ++step) {
    const int64_t sent = mesh.bytes_sent(), before = memory.live_bytes();
    memory.reset_peak();
    optimizer.step(lr);
    of = {mesh.bytes_sent() - sent, memory.peak_bytes() - before, memory.live_bytes() - before};
  }
  return of;
}

inline void save(Engine& engine, Optimizer& optimizer, const std::filesystem::path& run) {
  TrainingState state;
  state.add(state_of_model(engine));
  state.add(optimizer);
  save_checkpoint(run, {.step = 2, .optimizer_steps = optimizer.num_steps()}, checkpoint_pieces(state, engine.mesh()),
                  engine.mesh().world(), 0);
}

inline void load(Engine& engine, Optimizer& optimizer, const std::filesystem::path& run) {
  TrainingState state;
  state.add(state_of_model(engine));
  state.add(optimizer);
  CheckpointReader reader(run / "step_000002");
  StateReader tensors(state, engine.mesh(), reader, {});
  tensors.check();
  tensors.read();
  optimizer.set_num_steps(reader.info().optimizer_steps);
  engine.state().bump_version();
}

}  // namespace caravan::testing::matrices
