#include "caravan/prove/trace.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/module/initialise.h"
#include "caravan/module/join_tiles.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/optim/loss_scale.h"
#include "caravan/redistribute/whole.h"
#include "caravan/step/train_step.h"

namespace caravan {
namespace {

/// Spread of the initial values. Gradients of all parameters then have similar sizes; with the usual 0.02, those of
/// queries and keys nearly vanish.
constexpr double kStd = 0.25;

/// In fp16: large enough that few gradients are rounded to 0, small enough that none overflows.
constexpr double kLossScale = 1024;

Arrangement computing_in(at::ScalarType compute_dtype, Arrangement arrangement) {
  arrangement.strategy.compute_dtype = compute_dtype;
  return arrangement;
}

/// Whether a rank multiplies with a part of a weight, or has a part of a sequence.
bool splits_products(const Strategy& strategy) {
  // A plan cuts whole rows further, so that each rank has a summand of their loss.
  for (const auto& [axis, placement] : strategy.batch_layout.entries()) {
    const bool is_cut = axis != strategy.pipeline_axis && placement.is_whole() && strategy.loss_layout.has(axis) &&
                        strategy.loss_layout[axis].is_partial();
    if (is_cut) return true;
  }
  const auto is_cut = [](const auto& entry) { return entry.second.is_shard() && entry.second.owner() < 0; };
  const auto is_cut_leaf = [&](const auto& layouts) {
    return std::ranges::any_of(layouts.second.unsharded.entries(), is_cut);
  };
  return std::ranges::any_of(strategy.layouts, is_cut_leaf) || !strategy.batch_layout.sharding(1).empty();
}

/// Documents of 1 to 5 tokens, different in each row and step; the first token of each is not a target.
void pack_documents(TrainBatch& batch, uint64_t seed, int64_t step) {
  batch.documents = at::empty_like(batch.ids);
  batch.positions = at::empty_like(batch.ids);
  const RandomStream stream(seed, "prove.documents", step);
  const int64_t length = batch.ids.size(1);
  for (int64_t row = 0; row < batch.ids.size(0); ++row) {
    int64_t document = 0, position = 0;
    for (int64_t t = 0; t < length; ++t) {
      batch.documents[row][t] = document;
      batch.positions[row][t] = position++;
      const bool ends = position == 5 || stream.bits(static_cast<uint64_t>(row * length + t)) % 4 == 0;
      if (!ends) continue;
      batch.labels[row][t] = kIgnoredLabel;
      ++document;
      position = 0;
    }
  }
}

/// Row r ends its source r % 3 tokens early.
void pad_sources(TrainBatch& batch, int64_t sources) {
  batch.documents = at::ones_like(batch.ids);
  for (int64_t row = 0; row < batch.ids.size(0); ++row) {
    const int64_t padding = std::min(row % 3, sources - 1);
    batch.documents[row].narrow(0, sources - padding, padding).fill_(0);
  }
}

/// Rows are pairs. The log probabilities under a reference model are near those of a uniform one.
void add_reference(TrainBatch& batch, const PreferenceSettings& settings, uint64_t seed, int64_t step) {
  const int64_t rows = batch.ids.size(0);
  batch.sequences = 2;
  batch.num_targets = rows;
  const RandomStream stream(seed, "prove.reference", step);
  const at::Tensor reference = at::empty({rows, 2}, at::kDouble);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < 2; ++i) {
      const double noise = static_cast<double>(stream.bits(static_cast<uint64_t>(2 * row + i)) % 1000) / 1000 - 0.5;
      const auto half = batch.labels[row].view({2, -1})[i];
      const double targets = static_cast<double>(half.ne(kIgnoredLabel).sum().item<int64_t>());
      reference[row][i] = -3 * targets + 4 * noise;
    }
  }
  batch.preference = PreferencePass{.settings = settings, .reference = reference};
}

std::vector<std::string> parameter_names(const Model& model) {
  std::vector<std::string> names;
  for (const Parameter* parameter : model.parameters()) names.push_back(parameter->name());
  return names;
}

class CaseRun {
 public:
  using Arrange = std::function<Arrangement(Model& model, Mesh& mesh)>;

  /// `is_new`: with the initial values of a new model instead of a proof.
  CaseRun(const ProveCase& what, const std::shared_ptr<Communicator>& world, const std::vector<AxisSize>& axes,
          const Arrange& arrange, bool is_new = false);
  /// `paths` counts what the steps execute, not what a proof does besides; null in one process. Ranks stop after a step
  /// whose loss or norm is not finite, which differs from one process; there it is an error. `starts_anew`: each step
  /// starts from new values.
  Trace steps(int num_micro_batches, bool starts_anew, PathLog* paths);
  void step(PathLog& paths);
  std::vector<std::vector<at::Tensor>> summands(int64_t slice_rows);
  int64_t rows() const noexcept { return rows_; }

 private:
  TrainStep::Options options(int num_micro_batches) {
    return {.seed = what_.seed,
            .num_micro_batches = num_micro_batches,
            .clip_norm = what_.clip_norm,
            .loss_scale = loss_scale_ ? &*loss_scale_ : nullptr};
  }
  /// Without state of earlier steps.
  std::unique_ptr<Optimizer> make_optimizer() {
    return what_.optimizer ? what_.optimizer(engine_.state()) : std::make_unique<Sgd>(engine_.state());
  }
  int64_t slice_rows(int num_micro_batches) const;
  int64_t row_length() const { return what_.model.row_length() * (what_.preference ? 2 : 1); }
  void fill(uint64_t seed);
  void write(const std::vector<at::Tensor>& values);
  at::Tensor whole(const FlatMemory& flat, const Parameter& parameter) const;
  std::vector<at::Tensor> joined(const std::vector<at::Tensor>& tensors) const;
  std::vector<at::Tensor> values() const;
  std::vector<at::Tensor> gradients() const;
  TrainBatch batch(int64_t step) const;

  const ProveCase& what_;
  int64_t rows_;
  RowDeal deal_;
  Mesh mesh_;
  Model model_;
  std::vector<std::string> names_;  ///< of the parameters of the model that is not arranged yet, without tiles
  Arrangement arrangement_;
  Engine engine_;
  std::optional<LossScale> loss_scale_;
};

CaseRun::CaseRun(const ProveCase& what, const std::shared_ptr<Communicator>& world, const std::vector<AxisSize>& axes,
                 const Arrange& arrange, bool is_new)
    : what_(what),
      rows_(what.rows),
      deal_(world->size() > 1 ? what.deal : RowDeal{}),
      mesh_(Mesh::create(world, axes)),
      model_(what.model),
      names_(parameter_names(model_)),
      arrangement_(computing_in(what.compute_dtype, arrange(model_, mesh_))),
      engine_(model_, mesh_, arrangement_.strategy, {.seed = what.seed, .dtype = what.dtype, .initialise = is_new}) {
  if (what.compute_dtype == at::kHalf) loss_scale_.emplace(kLossScale);
  if (rows_ > 0) return;
  rows_ = 2 * what.num_micro_batches;
  for (const AxisSize& axis : what.axes) rows_ *= axis.size;
}

/// Element i of a parameter depends only on (seed, name, i), for any layout. Norms start around 1.
void CaseRun::fill(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const Parameter* parameter : model_.parameters()) {
    const Layout& layout = parameter->sharded_layout();
    at::Tensor piece = at::empty(local_shape(parameter->global_shape(), layout, engine_.mesh(), parameter->name()),
                                 engine_.state().values.options());
    if (piece.numel() == 0) continue;
    const Parameter random(parameter->whole_name(),
                           {.shape = parameter->whole_shape(), .init = {Init::Kind::normal, kStd}});
    initialise(piece, random, parameter->in_whole(local_boxes(parameter->global_shape(), layout, engine_.mesh())),
               seed);
    const Init::Kind kind = parameter->spec().init.kind;
    if (kind == Init::Kind::ones || kind == Init::Kind::row_norms) piece.add_(1);
    engine_.state().layout.write(engine_.state().values, *parameter, piece);
  }
  engine_.state().bump_version();
}

/// In one process, which has no tiles.
void CaseRun::write(const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  FlatState& state = engine_.state();
  const std::vector<Parameter*> parameters = model_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    state.layout.write(state.values, *parameters[i], values[i].to(state.values.scalar_type()));
  }
  state.bump_version();
}

/// The global tensor of a parameter in a flat buffer, by the law instead of the engine.
at::Tensor CaseRun::whole(const FlatMemory& flat, const Parameter& parameter) const {
  const at::Tensor all = whole_tensor(engine_.state().layout.read(flat, parameter), parameter.sharded_layout(),
                                      engine_.mesh(), parameter.name());
  return all.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

/// One process computes without tiles: the tensors as it has them.
std::vector<at::Tensor> CaseRun::joined(const std::vector<at::Tensor>& tensors) const {
  std::map<std::string, at::Tensor> by_name;
  for (auto& [name, tensor] : join_tiles(model_.parameters(), tensors)) by_name.emplace(name, std::move(tensor));
  std::vector<at::Tensor> all;
  for (const std::string& name : names_) all.push_back(by_name.at(name));
  return all;
}

std::vector<at::Tensor> CaseRun::values() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const Parameter* parameter : model_.parameters()) all.push_back(whole(engine_.state().values, *parameter));
  return joined(all);
}

std::vector<at::Tensor> CaseRun::gradients() const {
  const at::NoGradGuard no_grad;
  const double scale = loss_scale_ ? loss_scale_->value() : 1;
  std::vector<at::Tensor> all;
  for (const Parameter* parameter : model_.parameters()) {
    all.push_back(parameter->requires_grad() ? whole(engine_.state().gradients, *parameter).div_(scale) : at::Tensor());
  }
  return joined(all);
}

/// The global batch of a step: random tokens, each the target of the previous one; in row r the first r % 5 have none,
/// nor have the tokens of a source. Of a model that tells classes apart, a token of each row has one.
TrainBatch CaseRun::batch(int64_t step) const {
  const int64_t length = row_length();
  const at::Tensor tokens = at::empty({rows_, length + 1}, at::kLong);
  const RandomStream stream(what_.seed, "prove.tokens", step);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = stream.bits(static_cast<uint64_t>(i)) % what_.model.vocabulary;
  }
  // Copies also of one row, which is contiguous: labels are written below.
  const auto copy = [&](int64_t first) { return tokens.narrow(1, first, length).clone(at::MemoryFormat::Contiguous); };
  TrainBatch whole{.ids = copy(0), .labels = copy(1), .global_rows = rows_};
  const ModelConfig& model = what_.model;
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t unlabelled = model.source_context + std::min(row % 5, model.context - 1);
    if (model.classes > 0) {
      const int64_t label = whole.labels[row][0].item<int64_t>() % model.classes;
      whole.labels[row].fill_(kIgnoredLabel)[model.arch.is_causal ? length - 1 : 0] = label;
    } else {
      whole.labels[row].narrow(0, 0, unlabelled).fill_(kIgnoredLabel);
    }
  }
  if (model.token_types > 0) whole.token_types = whole.ids.remainder(model.token_types);
  if (what_.has_documents && model.has_encoder()) pad_sources(whole, model.source_context);
  if (what_.has_documents && !model.has_encoder()) pack_documents(whole, what_.seed, step);
  whole.num_targets = whole.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  if (what_.preference) add_reference(whole, *what_.preference, what_.seed, step);
  return whole;
}

/// The rows of the smallest micro-batch.
int64_t CaseRun::slice_rows(int num_micro_batches) const {
  if (!deal_.is_even()) return *std::ranges::min_element(deal_.rows) / deal_.unit / num_micro_batches * deal_.unit;
  const Box mine = local_box({rows_, row_length()}, engine_.strategy().batch_layout, engine_.mesh(), "batch");
  return std::max<int64_t>(1, mine.size[0] / num_micro_batches);
}

Trace CaseRun::steps(int num_micro_batches, bool starts_anew, PathLog* paths) {
  Trace trace{.where = engine_.mesh().where(), .names = names_};
  const Strategy& strategy = engine_.strategy();
  trace.slice_rows = slice_rows(num_micro_batches);
  const auto is_tile = [](const Parameter* parameter) { return parameter->tile_of() != nullptr; };
  trace.splits_products = splits_products(strategy) || std::ranges::any_of(model_.parameters(), is_tile);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer();
  TrainStep train_step(engine_, *optimizer, options(num_micro_batches));
  for (int step = 0; step < what_.num_steps; ++step) {
    if (step == 0 || starts_anew) fill(what_.seed + static_cast<uint64_t>(step));
    StepTrace& own = trace.steps.emplace_back();
    own.before = values();
    // One process: the gradient is that of older values, and updates the newest.
    const bool lags = what_.delays && paths == nullptr && step > 0 && !starts_anew;
    if (lags) write(trace.steps[static_cast<size_t>(step) - 1].before);
    const TrainBatch mine_of_batch = piece_of_rank(engine_, batch(step), deal_);
    const PathScope counted(paths);
    bool is_finite = true;
    try {
      train_step.run(mine_of_batch, step, what_.lr, false, [&](const StepResult& result) {
        const PathScope uncounted(nullptr);
        own.loss = result.loss;
        own.grad_norm = result.grad_norm;
        own.gradients = gradients();
        if (lags) write(own.before);
      });
    } catch (const NumericsError&) {
      if (paths == nullptr) throw;
      is_finite = false;
    }
    const PathScope uncounted(nullptr);
    own.after = values();
    if (!is_finite) break;
  }
  return trace;
}

std::vector<std::vector<at::Tensor>> CaseRun::summands(int64_t slice_rows) {
  const std::unique_ptr<Optimizer> optimizer = make_optimizer();
  fill(what_.seed);
  std::vector<std::vector<at::Tensor>> all;
  const TrainBatch whole = batch(0);
  TrainStep train_step(engine_, *optimizer, options(1));
  for (int64_t first = 0; first + slice_rows <= rows_; first += slice_rows) {
    const Box slice{{first, 0}, {slice_rows, row_length()}};
    train_step.run(piece_of(whole, slice), 0, /*lr=*/0, false, [&](const StepResult&) { all.push_back(gradients()); });
  }
  return all;
}

/// Runs a step as a run does, in fp16 until a scale fits.
void CaseRun::step(PathLog& paths) {
  if (loss_scale_) loss_scale_.emplace();
  const std::unique_ptr<Optimizer> optimizer = make_optimizer();
  TrainStep train_step(engine_, *optimizer, options(what_.num_micro_batches));
  const TrainBatch mine = piece_of_rank(engine_, batch(0), deal_);
  const PathScope counted(&paths);
  while (train_step.run(mine, 0, what_.lr).is_skipped) {
  }
}

}  // namespace

bool rounds_to_16_bits(const ProveCase& what) {
  return what.compute_dtype == at::kBFloat16 || what.compute_dtype == at::kHalf;
}

Trace trace_on_ranks(const ProveCase& what, const std::shared_ptr<Communicator>& world) {
  CaseRun run(what, world, what.axes, what.arrange);
  PathLog paths(what.planted);
  Trace trace = run.steps(what.num_micro_batches, rounds_to_16_bits(what), &paths);
  trace.paths = paths.counts();
  return trace;
}

PathCounts paths_of_step(const ProveCase& what, const std::shared_ptr<Communicator>& world) {
  CaseRun run(what, world, what.axes, what.arrange, /*is_new=*/true);
  PathLog paths;
  run.step(paths);
  return gather_paths(paths.counts(), world);
}

Trace trace_on_one(const ProveCase& what, const std::shared_ptr<Communicator>& world, const Trace& arranged) {
  std::vector<AxisSize> axes = what.axes;
  for (AxisSize& axis : axes) axis.size = 1;
  const auto arrange = [](Model& model, Mesh& mesh) { return Arrangement(whole_model(model, mesh)); };
  CaseRun run(what, world, axes, arrange);
  std::vector<std::vector<at::Tensor>> summands = run.summands(arranged.slice_rows);
  // All rows at once, which needs no accumulation; in 16 bits with the roundings of the ranks.
  const bool is_rounded = rounds_to_16_bits(what);
  const bool in_slices = is_rounded && run.rows() % arranged.slice_rows == 0;
  const int slices = in_slices ? static_cast<int>(run.rows() / arranged.slice_rows) : 1;
  Trace trace = run.steps(slices, is_rounded, nullptr);
  trace.summands = std::move(summands);
  if (!is_rounded || !arranged.splits_products) return trace;
  ProveCase exact = what;
  exact.compute_dtype = at::kFloat;
  trace.exact = CaseRun(exact, world, axes, arrange).steps(slices, is_rounded, nullptr).steps;
  return trace;
}

}  // namespace caravan
