#include "caravan/train/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/step/batch.h"

namespace caravan {
namespace {

/// The rows to evaluate: `count` of `all`, evenly spread.
struct Selection {
  int64_t all;
  int64_t count;
  int64_t operator[](int64_t i) const { return i * all / count; }
};

/// Fills the batch with rows i, i + 1, .. of the selection. Returns the number of rows that are of the selection. The
/// others are padding without targets.
int64_t fill(TrainBatch& batch, const ValidationRows& source, const Selection& selection, int64_t first) {
  const int64_t rows = batch.ids.size(0);
  const int64_t filled = std::clamp<int64_t>(selection.count - first, 0, rows);
  for_each_row(buffers_of(batch), source.shape(), [&](int64_t row, const RowBuffers& one) {
    source.fill(row < filled ? selection[first + row] : source.size(), one);
  });
  return filled;
}

int64_t sum_over(Communicator& comm, int64_t value, const char* what) {
  const Buffer buffer{&value, 1, Dtype::int64};
  comm.all_reduce(buffer, buffer, ReduceOp::sum, what);
  return value;
}

[[noreturn]] void refuse_without_targets(const Selection& selection) {
  throw DataError(
      {"evaluate", "validation text",
       fmt::format("no token of the {} of {} windows that are evaluated is a target", selection.count, selection.all),
       "",
       selection.count < selection.all
           ? "use a larger train.eval_batches, or 0 for all windows"
           : "give documents of more than one token, or chats whose answers fit into the context"});
}

Selection selection_of(const ValidationRows& rows, int64_t max_windows) {
  const int64_t bound = max_windows > 0 ? max_windows : rows.size();
  return {.all = rows.size(), .count = std::min(bound, rows.size())};
}

}  // namespace

void check_targets(const ValidationRows& rows, int64_t max_windows) {
  const Selection selection = selection_of(rows, max_windows);
  TrainBatch row = empty_batch(rows.shape(), 1);
  for (int64_t i = 0; i < selection.count; ++i) {
    fill(row, rows, selection, i);
    if (row.labels.ne(kIgnoredLabel).any().item<bool>()) return;
  }
  refuse_without_targets(selection);
}

std::optional<Evaluation> evaluate(const LossOf& loss, const ValidationRows& rows, const EvaluationPart& part,
                                   const EvaluationOptions& options, const PredictionsOf& predict) {
  const Selection selection = selection_of(rows, options.max_windows);
  const int64_t rows_per_round = part.num_parts * options.rows;
  const int64_t rounds = (selection.count + rows_per_round - 1) / rows_per_round;
  TrainBatch batch = empty_batch(rows.shape(), options.rows);
  PredictionCounts predictions(options.num_classes);
  double nats = 0;
  int64_t num_targets = 0;
  bool stops = false;
  for (int64_t round = 0; round < rounds; ++round) {
    if (options.progress) options.progress(round, rounds);
    const int64_t filled = fill(batch, rows, selection, (round * part.num_parts + part.part) * options.rows);
    // A rank without a window computes padding, so that all ranks make the same forward passes.
    const int64_t computed = std::max<int64_t>((filled + part.row_parts - 1) / part.row_parts, 1) * part.row_parts;
    const TrainBatch taken = piece_of(batch, {{0, 0}, {computed, batch.ids.size(1)}});
    ForwardContext context{.phase = Phase::evaluate};
    set_tokens(context, taken);
    nats += loss(taken.ids, taken.labels, context);
    if (predict) {
      const at::Tensor predicted = predict(taken.ids, taken.labels, context);
      if (predicted.defined()) predictions.add(taken.labels, predicted);
    }
    const at::Tensor targets = taken.labels.ne(kIgnoredLabel);
    if (part.counts) num_targets += (options.counts_rows ? targets.any(1) : targets).sum().item<int64_t>();
    stops = stops || (options.stop_requested && options.stop_requested());
    if ((round + 1) % part.rounds_at_once != 0 && round + 1 < rounds) continue;
    if (sum_over(part.world, stops ? 1 : 0, "stop requests") > 0) return std::nullopt;
  }
  double total = nats;
  const Buffer buffer{&total, 1, Dtype::fp64};
  part.world.all_reduce(buffer, buffer, ReduceOp::sum, "validation loss");
  num_targets = sum_over(part.world, num_targets, "validation targets");
  if (num_targets == 0) refuse_without_targets(selection);
  Evaluation result{.loss = total / static_cast<double>(num_targets)};
  if (rows.text_bytes() > 0) {
    const double share = static_cast<double>(rows.num_targets()) / static_cast<double>(num_targets);
    result.bits_per_byte = total * share / std::numbers::ln2 / static_cast<double>(rows.text_bytes());
  }
  if (predict) {
    predictions.sum_over(part.world);
    result.accuracy = predictions.accuracy();
    result.macro_f1 = predictions.macro_f1();
  }
  return result;
}

std::optional<Evaluation> evaluate(Engine& engine, const ValidationRows& rows, const EvaluationOptions& options,
                                   const LossPass& pass) {
  const Mesh& mesh = engine.mesh();
  const Strategy& strategy = engine.strategy();
  EvaluationPart part{.world = mesh.world()};
  if (strategy.plan != nullptr) part.row_parts = strategy.plan->num_row_parts();
  for (const auto& [axis, placement] : strategy.batch_layout.entries()) {
    if (!placement.is_shard(0)) continue;
    part.part = part.part * mesh[axis].size() + mesh[axis].coord();
    part.num_parts *= mesh[axis].size();
  }
  // Agreement after each round would let only one stage work at a time.
  if (!strategy.pipeline_axis.empty()) part.rounds_at_once = 2 * mesh[strategy.pipeline_axis].size();
  // Every element of the batch is counted by one rank: coordinate 0 of the axes over which it is whole.
  const bool loss_counts = strategy.counts_loss(mesh);
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.coord() != 0) part.counts &= strategy.batch_layout[axis.name()].is_shard();
  }
  if (!strategy.batch_layout.sharding(1).empty()) {
    throw UsageError({"evaluate", strategy.name, "shards sequences, but windows are evaluated whole",
                      mesh.where() + ", batch " + strategy.batch_layout.to_string(), "evaluate with a StageRunner"});
  }
  StageRunner runner(engine);
  const auto loss = [&](const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context) {
    const at::Tensor output = pass ? pass(runner, ids, labels, context) : runner.evaluate({ids, labels, context});
    return output.defined() && loss_counts ? output.item<double>() : 0.0;
  };
  const EvaluationScope scope(engine);
  return evaluate(loss, rows, part, options, options.has_accuracy ? predictions_of(engine) : PredictionsOf());
}

std::optional<Evaluation> evaluate(Model& model, Communicator& world, const ValidationRows& rows,
                                   const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const auto loss = [&](const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context) {
    return model.run({ids, labels}, context).front().item<double>();
  };
  return evaluate(loss, rows, {.world = world, .part = world.rank(), .num_parts = world.size()}, options,
                  options.has_accuracy ? predictions_of(model) : PredictionsOf());
}

}  // namespace caravan
