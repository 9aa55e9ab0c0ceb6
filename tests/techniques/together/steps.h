#pragma once

#include <functional>

#include "caravan/comm/record.h"
#include "caravan/optim/optimizer.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/one_process.h"

namespace caravan::testing {

/// The whole tensor of a piece that is laid out like the sharded `parameter`. Collective.
inline at::Tensor whole_of(const at::Tensor& piece, const Parameter& parameter, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const Layout& rest = parameter.sharded_layout();
  return redistribute(piece, rest, Layout::all(mesh, Invariant{}), mesh, parameter.name()).to(at::kFloat).clone();
}

inline Named whole_gradients(const Engine& engine, const Model& model) {
  Named all;
  for (const Parameter* parameter : model.parameters()) {
    all[parameter->name()] = whole_of(parameter->sharded().grad(), *parameter, engine.mesh());
  }
  return all;
}

/// The forwards and backwards of one step of `problem` on this rank.
inline void run_passes(Engine& engine, Model& model, const Problem& problem, int64_t step, int num_micro_batches,
                       double scale = 1) {
  const Mesh& mesh = engine.mesh();
  const Problem::Batch batch = problem.batch(step);
  engine.begin_step(num_micro_batches);
  for (int micro = 0; micro < num_micro_batches; ++micro) {
    Problem::Batch part = problem.part(batch, mesh.rank(), mesh.size(), micro, num_micro_batches);
    part.context.loss_scale *= scale;
    backward(model.run({part.ids, part.labels}, part.context)[0], engine.strategy().loss_layout);
  }
  engine.finish_step();
}

/// Calls `body` with an engine of the choice on every one of `num_ranks` ranks.
inline void with_engine(const StrategyChoice& choice, const Problem& problem, int num_ranks,
                        const std::function<void(Engine&, Model&)>& body) {
  on_mesh({{"dp", num_ranks}}, [&](const Mesh& world) {
    Mesh mesh = world;
    Model model(problem.config);
    Engine engine(model, mesh, make_strategy(choice, model, mesh), {.seed = 5});
    body(engine, model);
  });
}

/// The gradients of the first step.
inline Named first_gradients(const StrategyChoice& choice, const Problem& problem, int num_ranks,
                             int num_micro_batches = 1) {
  Named result;
  with_engine(choice, problem, num_ranks, [&](Engine& engine, Model& model) {
    run_passes(engine, model, problem, 0, num_micro_batches);
    const Named all = whole_gradients(engine, model);
    if (engine.mesh().rank() == 0) result = all;
  });
  return result;
}

/// Large enough to make alignment and cuts at rows negligible.
inline const ModelConfig kLargerLlama{.arch = Architecture::llama(),
                                      .layers = 6,
                                      .width = 256,
                                      .heads = 4,
                                      .context = 64,
                                      .vocabulary = 1000,
                                      .tie_embeddings = false};

/// What a step sends, by the record back-end with meta tensors, except for the sums of the loss and the norm.
/// Afterwards `see` is called with the engine.
inline double sent_by_recording(const StrategyChoice& choice, const ModelConfig& config, int rank, int num_ranks,
                                int num_micro_batches = 1, const std::function<void(Engine&)>& see = {}) {
  Mesh mesh = Mesh::create(make_record_world(rank, num_ranks), {{"dp", num_ranks}});
  Model model(config);
  Engine engine(model, mesh, make_strategy(choice, model, mesh), {.device = at::kMeta});
  Sgd optimizer(engine.state());
  TrainStep step(engine, optimizer, {.num_micro_batches = num_micro_batches, .clip_norm = 1});
  const at::Tensor ids = at::empty({num_micro_batches, config.context}, at::TensorOptions(at::kLong).device(at::kMeta));
  const TrainBatch batch{.ids = ids,
                         .labels = at::empty_like(ids),
                         .first_row = rank * num_micro_batches,
                         .global_rows = int64_t{num_ranks} * num_micro_batches,
                         .num_targets = int64_t{num_ranks} * num_micro_batches * config.context};
  engine.table(num_micro_batches);
  const int64_t before = mesh.bytes_sent();
  step.run(batch, 0, 1e-3);
  const int64_t scalars = wire_bytes(Verb::all_reduce, rank, num_ranks, 16, 0, 0) +
                          wire_bytes(Verb::all_reduce, rank, num_ranks, 560, 0, 0);
  const auto sent = static_cast<double>(mesh.bytes_sent() - before - scalars);
  if (see) see(engine);
  return sent;
}

}  // namespace caravan::testing
