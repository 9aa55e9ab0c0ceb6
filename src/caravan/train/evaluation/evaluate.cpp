#include "caravan/train/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

/// The windows to evaluate: `count` of `all`, evenly spread.
struct Selection {
  int64_t all;
  int64_t count;
  int64_t operator[](int64_t i) const { return i * all / count; }
};

/// Windows i, i + 1, .. of the selection in the rows of tensors.
struct Rows {
  Rows(int64_t rows, const ValidationWindows& windows)
      : ids(at::empty({rows, windows.context()}, at::kLong)),
        labels(at::empty_like(ids)),
        has_documents_(windows.documents() != nullptr) {
    if (!has_documents_) return;
    documents_ = at::empty_like(ids);
    positions_ = at::empty_like(ids);
  }

  /// Returns the number of rows that have a window. The others are padding without targets.
  int64_t fill(const ValidationWindows& windows, const Selection& selection, int64_t first) {
    const int64_t filled = std::clamp<int64_t>(selection.count - first, 0, ids.size(0));
    for (int64_t row = 0; row < ids.size(0); ++row) {
      const int64_t window = row < filled ? selection[first + row] : windows.size();
      windows.fill(window, row_of(ids, row), row_of(labels, row), row_of(documents_, row), row_of(positions_, row));
    }
    return filled;
  }

  ForwardContext context(int64_t rows) const {
    ForwardContext context{.phase = Phase::evaluate};
    if (!has_documents_) return context;
    context.positions = positions_.narrow(0, 0, rows);
    context.documents = documents_.narrow(0, 0, rows);
    return context;
  }

  at::Tensor ids;
  at::Tensor labels;

 private:
  static std::span<int64_t> row_of(const at::Tensor& tensor, int64_t row) {
    if (!tensor.defined()) return {};
    const int64_t context = tensor.size(1);
    return {tensor.mutable_data_ptr<int64_t>() + row * context, static_cast<size_t>(context)};
  }
  bool has_documents_;
  at::Tensor documents_;
  at::Tensor positions_;
};

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

Selection selection_of(const ValidationWindows& windows, int64_t max_windows) {
  const int64_t bound = max_windows > 0 ? max_windows : windows.size();
  return {.all = windows.size(), .count = std::min(bound, windows.size())};
}

}  // namespace

void check_targets(const ValidationWindows& windows, int64_t max_windows) {
  const Selection selection = selection_of(windows, max_windows);
  Rows row(1, windows);
  for (int64_t i = 0; i < selection.count; ++i) {
    row.fill(windows, selection, i);
    if (row.labels.ne(kIgnoredLabel).any().item<bool>()) return;
  }
  refuse_without_targets(selection);
}

std::optional<Evaluation> evaluate(const LossOf& loss, const ValidationWindows& windows, const EvaluationPart& part,
                                   const EvaluationOptions& options) {
  const Selection selection = selection_of(windows, options.max_windows);
  const int64_t windows_per_round = part.num_parts * options.rows;
  const int64_t rounds = (selection.count + windows_per_round - 1) / windows_per_round;
  Rows rows(options.rows, windows);
  double nats = 0;
  int64_t num_targets = 0;
  bool stops = false;
  for (int64_t round = 0; round < rounds; ++round) {
    if (options.progress) options.progress(round, rounds);
    const int64_t filled = rows.fill(windows, selection, (round * part.num_parts + part.part) * options.rows);
    // A rank without a window computes padding, so that all ranks make the same forward passes.
    const int64_t computed = std::max<int64_t>((filled + part.row_parts - 1) / part.row_parts, 1) * part.row_parts;
    const at::Tensor labels = rows.labels.narrow(0, 0, computed);
    nats += loss(rows.ids.narrow(0, 0, computed), labels, rows.context(computed));
    if (part.counts) num_targets += labels.ne(kIgnoredLabel).sum().item<int64_t>();
    stops = stops || (options.stop_requested && options.stop_requested());
    if ((round + 1) % part.rounds_at_once != 0 && round + 1 < rounds) continue;
    if (sum_over(part.world, stops ? 1 : 0, "stop requests") > 0) return std::nullopt;
  }
  double total = nats;
  const Buffer buffer{&total, 1, Dtype::fp64};
  part.world.all_reduce(buffer, buffer, ReduceOp::sum, "validation loss");
  num_targets = sum_over(part.world, num_targets, "validation targets");
  if (num_targets == 0) refuse_without_targets(selection);
  const double share = static_cast<double>(windows.num_targets()) / static_cast<double>(num_targets);
  return Evaluation{.loss = total / static_cast<double>(num_targets),
                    .bits_per_byte = total * share / std::numbers::ln2 / static_cast<double>(windows.text_bytes())};
}

std::optional<Evaluation> evaluate(Engine& engine, const ValidationWindows& windows, const EvaluationOptions& options) {
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
    const at::Tensor output = runner.evaluate({ids, labels, context});
    return output.defined() && loss_counts ? output.item<double>() : 0.0;
  };
  const EvaluationScope scope(engine);
  return evaluate(loss, windows, part, options);
}

std::optional<Evaluation> evaluate(Model& model, Communicator& world, const ValidationWindows& windows,
                                   const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const auto loss = [&](const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context) {
    return model.run({ids, labels}, context).front().item<double>();
  };
  return evaluate(loss, windows, {.world = world, .part = world.rank(), .num_parts = world.size()}, options);
}

}  // namespace caravan
