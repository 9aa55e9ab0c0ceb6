#include "caravan/session/parallelize.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/registry/registry.h"
#include "caravan/session/loss_check.h"
#include "caravan/step/batch.h"
#include "caravan/techniques/make_strategy.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

/// The counter of a checkpoint with the steps of the model, where its progress counts something else, such as epochs.
constexpr const char* kModelSteps = "model_steps";

/// The same for all ways to write a folder, whether it exists or not.
std::filesystem::path key_of(const std::filesystem::path& run) {
  return (std::filesystem::absolute(run) / "").lexically_normal();
}

[[noreturn]] void refuse_model(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"parallelize", subject, fact, "", action});
}

/// The patterns that fit modules inside units of the model; one that fits a unit itself chooses what is a unit anyway.
std::vector<std::string> patterns_inside(const std::vector<std::string>& patterns, Module& model, bool is_own) {
  std::vector<std::string> names;
  for (const Module* block : model.blocks()) names.push_back(block->name());
  std::vector<std::string> inside;
  for (const std::string& pattern : patterns) {
    const auto fits = [&](const std::string& name) { return matches_pattern(pattern, name); };
    if (std::ranges::any_of(names, fits)) continue;
    if (is_own) {
      refuse_model(pattern, fmt::format("fits none of the module's units, which are {}", some_of(names, 8)),
                   fmt::format("the nearest is '{}'; in_units() makes units of what is inside a module",
                               nearest_pattern(pattern, names)));
    }
    inside.push_back(pattern);
  }
  return inside;
}

/// What the techniques say, with patterns checked against the units of `model`, and whether it is a user's own.
StrategyChoice choice_of(const std::vector<Technique>& techniques, Module& model, const Mesh& mesh, bool is_own,
                         int64_t& micro_batches) {
  StrategyChoice choice;
  const std::map<std::string_view, Split*> splits{{"tensor_parallel", &choice.tensor_parallel},
                                                  {"context_parallel", &choice.context_parallel},
                                                  {"expert_parallel", &choice.expert_parallel}};
  std::vector<std::string_view> given;
  for (const Technique& technique : techniques) {
    const auto* setting = std::get_if<Setting>(&technique);
    const std::string_view family = setting != nullptr ? setting->family().name : "precision";
    if (std::ranges::find(given, family) != given.end()) {
      refuse_model(std::string(family), "is chosen twice", "leave one of them out");
    }
    given.push_back(family);
    if (setting == nullptr) {
      const auto& precision = std::get<PrecisionChoice>(technique);
      if (precision.scales_loss()) refuse_model("precision", "fp16 needs a loss that is scaled", "use 'bf16'");
      set_dtypes(choice, precision);
    } else if (family == "data_parallel") {
      choice.data_parallel = *setting;
    } else if (family == "hook") {
      choice.hook = *setting;
    } else if (family == "recompute") {
      choice.recompute = *setting;
    } else if (family == "pipeline") {
      choice.pipeline.schedule = *setting;
    } else if (const auto split = splits.find(family); split != splits.end()) {
      split->second->kind = *setting;
    } else {
      refuse_model(std::string(family), "is not a technique of a model", "pass it to what makes the optimizer");
    }
  }
  const auto degree = [&](std::string_view axis) { return mesh.has(axis) ? mesh[axis].size() : int64_t{1}; };
  for (auto [family, split] : splits) {
    split->degree = degree(family_of(family).axis);
    if (std::ranges::find(given, family) != given.end() && split->degree == 1 && !split->kind.is_first()) {
      refuse_model(std::string(family), fmt::format("the mesh has no axis {}", family_of(family).axis),
                   fmt::format("make the session with {} above 1", family_of(family).axis));
    }
  }
  choice.sequences =
      choice.tensor_parallel.parts().rows * choice.context_parallel.parts().rows * choice.expert_parallel.parts().rows;
  choice.pipeline.degree = degree("pp");
  if (const int64_t asked = choice.pipeline.micro_batches(); asked != 0) {
    if (micro_batches != 1 && micro_batches != asked) {
      refuse_model("micro_batches", fmt::format("is {}, and {} for the pipeline", micro_batches, asked),
                   "give one of them");
    }
    micro_batches = asked;
  }
  if (const std::string wrong = choice.pipeline.schedule.set("micro_batches", micro_batches); !wrong.empty()) {
    refuse_model("micro_batches", wrong, "use fewer");
  }
  for (const Setting* setting : {&choice.data_parallel, &choice.pipeline.schedule}) {
    const bool is_chosen = setting == &choice.data_parallel || choice.pipeline.is_used();
    if (is_chosen && !setting->has(Trait::whole_gradient)) {
      refuse_model(setting->full_name(), fmt::format("'{}' steps in a way of its own", setting->name()),
                   "use `caravan train`, which runs it");
    }
  }
  if (choice.data_parallel.reads("units")) {
    choice.data_parallel.set("units", patterns_inside(choice.data_parallel.texts("units"), model, is_own));
  }
  if (is_own && choice.recompute.reads("modules")) patterns_inside(choice.recompute.texts("modules"), model, true);
  return choice;
}

/// Throws UsageError for a loss that acts as a mean over its rows though gradients are summed, or as a sum though they
/// are averaged: of two halves a sum adds up to that of both, a mean to twice as much.
void check_kind(const ParallelModel::Loss& loss, const at::Tensor& output, const at::Tensor& target, bool average,
                int64_t parts) {
  if (output.is_meta() || output.dim() == 0 || target.dim() == 0 || output.size(0) != target.size(0)) return;
  const int64_t half = output.size(0) / 2;
  if (half == 0) return;
  const at::NoGradGuard no_grad;
  const auto of = [&](int64_t first, int64_t rows) {
    return loss(output.narrow(0, first, rows), target.narrow(0, first, rows)).item<double>();
  };
  const double ratio = (of(0, half) + of(half, half)) / of(0, 2 * half);
  if (!average && std::abs(ratio - 2) < 0.1) refuse_mean("of two halves it is twice as large as of both", parts);
  if (average && std::abs(ratio - 1) < 1e-3) {
    refuse_model("loss", fmt::format("is a sum over its rows, and is averaged over {} parts of the batch", parts),
                 "use a mean over the rows that it gets, or leave ParallelOptions::average out");
  }
}

}  // namespace

struct ParallelModel::State : std::enable_shared_from_this<State> {
  State(std::unique_ptr<ModuleAdapter> adapted, Module& model, const Mesh& on, Strategy strategy,
        const ParallelOptions& given, at::Device device)
      : adapter(std::move(adapted)),
        mesh(on),
        options(given),
        engine(model, mesh, std::move(strategy), {.seed = given.seed.value_or(1), .device = device}),
        runner(engine) {
    for (const auto& [axis, placement] : engine.strategy().loss_layout.entries()) {
      const bool is_of_stages = axis == engine.strategy().pipeline_axis;
      if (!is_of_stages && placement.is_partial()) num_parts *= mesh[axis].size();
    }
    num_parts *= options.micro_batches;
    if (!engine.state().values.is_meta()) {
      check_same_number(mesh.world(), static_cast<double>(options.micro_batches), "micro_batches",
                        "give all ranks the same");
      check_same_number(mesh.world(), options.average ? 1 : 0, "average", "give all ranks the same");
    }
    loss_hook = model.blocks().back()->add_hook(
        [this](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
          Tensors outputs = next(std::move(inputs), context);
          return loss_of ? Tensors{loss_of(outputs, context.micro_batch)} : outputs;
        },
        Module::Place::outermost);
  }

  uint64_t seed() const { return options.seed.value_or(1); }
  /// Ranks of dp, times micro-batches.
  int64_t num_parts_of_rows() const { return mesh["dp"].size() * options.micro_batches; }
  bool is_pipelined() const { return !engine.strategy().pipeline_axis.empty(); }
  ForwardContext context(int micro_batch) const { return {.seed = seed(), .step = step, .micro_batch = micro_batch}; }
  double gradient_scale() const { return options.average ? 1.0 / static_cast<double>(num_parts) : 1.0; }
  bool checks_loss() const { return !options.average && num_parts > 1 && step == 0; }
  /// Throws UsageError unless all ranks of `comm` have the same number.
  static void check_same_number(Communicator& comm, double number, const std::string& subject,
                                const std::string& action) {
    const at::Tensor ends =
        at::stack({at::scalar_tensor(number, at::kDouble), at::scalar_tensor(-number, at::kDouble)});
    all_reduce_async(comm, ends, ends, ReduceOp::max, "agreement").wait();
    const double largest = ends[0].item<double>(), smallest = -ends[1].item<double>();
    if (largest != smallest) {
      refuse_model(subject, fmt::format("differs between ranks: {:g} and {:g}", smallest, largest), action);
    }
  }
  /// In the first step: ranks that compute parts of one batch have the same rows; if it `is_whole`, all ranks do.
  void check_same(const at::Tensor& x, const at::Tensor& y, bool is_whole) const {
    if (step != 0 || x.is_meta()) return;
    const auto sum_of = [](const at::Tensor& tensor) {
      const at::Tensor weights = at::arange(1, tensor.numel() + 1, at::kDouble).view(tensor.sizes());
      return tensor.detach().to(at::kDouble).mul(weights).sum().item<double>();
    };
    for (const MeshAxis& axis : mesh.axes()) {
      const bool has_own_rows =
          engine.strategy().batch_layout.has(axis.name()) && engine.strategy().batch_layout[axis.name()].is_shard();
      if (axis.size() == 1 || (has_own_rows && !is_whole)) continue;
      const std::string action =
          is_whole ? "give every rank the whole batch" : "give ranks of one replica the same rows";
      check_same_number(axis.comm(), sum_of(x), "x of step(), over " + axis.name(), action);
      check_same_number(axis.comm(), sum_of(y), "y of step(), over " + axis.name(), action);
    }
  }
  /// Means of unequal numbers of rows are not the mean of the batch.
  void check_rows(int64_t rows) const {
    if (!options.average || engine.state().values.is_meta()) return;
    check_same_number(mesh.world(), static_cast<double>(rows), "rows",
                      "give every rank as many, or use a sum as the loss without ParallelOptions::average");
  }
  /// The sum over the ranks whose loss counts.
  double all_of(double loss) const {
    at::Tensor sum = at::scalar_tensor(engine.strategy().counts_loss(mesh) ? loss : 0.0, at::kDouble).reshape({1});
    all_reduce_async(mesh.world(), sum, sum, ReduceOp::sum, "loss").wait();
    return sum.item<double>();
  }
  double run_step(const std::function<MicroBatch(int)>& batch_of) {
    const double loss = runner.run_step(static_cast<int>(options.micro_batches), batch_of);
    ++step;
    return engine.state().values.is_meta() ? 0.0 : all_of(loss);
  }

  /// Outputs of a Model whose layers or sequences are split are parts.
  void check_whole_outputs(const char* op) const {
    if (adapter != nullptr || engine.strategy().plan == nullptr) return;
    refuse_model(op, "the layers or sequences of the model are split, and a rank has a part of its outputs",
                 "call step(ids, labels)");
  }
  /// The output of the last stage, on every rank of the pipeline.
  at::Tensor from_last_stage(const at::Tensor& output) const {
    constexpr int64_t kMostDims = 14;
    const Strategy& strategy = engine.strategy();
    const int last = strategy.coord_of(strategy.num_stages() - 1);
    Communicator& stages = mesh[strategy.pipeline_axis].comm();
    at::Tensor header = at::zeros({kMostDims + 2}, at::kLong);
    auto* numbers = header.mutable_data_ptr<int64_t>();
    if (stages.rank() == last) {
      if (output.dim() > kMostDims) refuse_model("evaluate", "the output has too many dims", "flatten it");
      numbers[0] = static_cast<int64_t>(output.scalar_type());
      numbers[1] = output.dim();
      std::copy_n(output.sizes().begin(), output.dim(), numbers + 2);
    }
    broadcast_async(stages, header, last, "shape of the output").wait();
    const at::IntArrayRef sizes(numbers + 2, static_cast<size_t>(numbers[1]));
    at::Tensor all =
        stages.rank() == last ? output.contiguous() : at::empty(sizes, static_cast<at::ScalarType>(numbers[0]));
    if (all.numel() > 0) broadcast_async(stages, all, last, "output").wait();
    return all;
  }

  // Steps of the caller's own.
  void begin_forward(int64_t rows) {
    if (is_pipelined()) {
      refuse_model("forward", "this rank has some of the stages of a pipeline", "call step(), or evaluate()");
    }
    if (num_forwards == num_backwards && num_forwards == options.micro_batches) num_forwards = num_backwards = 0;
    if (num_forwards == options.micro_batches) {
      refuse_model("forward",
                   fmt::format("{} of {} micro-batches had no backward", num_forwards - num_backwards, num_forwards),
                   "call backward() after each forward, evaluate with at::NoGradGuard, or abandon_step()");
    }
    backward_watch.reset();
    if (checks_loss()) backward_watch = std::make_unique<BackwardWatch>();
    if (num_forwards == 0 && step == 0 && rows >= 0) check_rows(rows);
    if (num_forwards == 0) num_losses = 0;
    if (num_forwards == 0) engine.begin_step(static_cast<int>(options.micro_batches));
    ++num_forwards;
  }
  void scale_gradients() {
    const at::NoGradGuard no_grad;
    // A loss of several forwards is one part.
    const double scale =
        gradient_scale() * static_cast<double>(options.micro_batches) / static_cast<double>(num_losses);
    for (const FlatMemory::Piece& piece : engine.state().gradients.pieces()) piece.memory.mul_(scale);
  }
  void end_backward() {
    if (++num_backwards < options.micro_batches) return;
    engine.finish_step();
    if (options.average && num_parts > 1) scale_gradients();
    ++step;
  }
  /// The backward of the caller's loss comes to an output.
  void see_gradient(const std::shared_ptr<bool>& is_reached) {
    if (std::exchange(*is_reached, true)) return;
    const int task = torch::autograd::get_current_graph_task_id();
    if (std::exchange(last_backward, task) != task) ++num_losses;
    const std::string mean = backward_watch ? backward_watch->mean() : "";
    if (!mean.empty()) refuse_mean(mean, num_parts);
    torch::autograd::Engine::get_default_engine().queue_callback([state = weak_from_this()] {
      if (const auto self = state.lock()) self->end_backward();
    });
  }

  ModuleCheckpoint& checkpoint_in(const std::filesystem::path& run) {
    std::unique_ptr<ModuleCheckpoint>& checkpoint = checkpoints[key_of(run)];
    if (!checkpoint) {
      checkpoint = std::make_unique<ModuleCheckpoint>(run, engine, optimizer);
      for (auto* scheduler : schedulers) checkpoint->add_scheduler(*scheduler);
    }
    return *checkpoint;
  }

  std::unique_ptr<ModuleAdapter> adapter;  ///< null: a Module of this library
  Mesh mesh;
  ParallelOptions options;
  Engine engine;
  StageRunner runner;
  Hook loss_hook;
  /// Of a step, on the last stage: what the outputs of a micro-batch make.
  std::function<at::Tensor(const Tensors& outputs, int micro_batch)> loss_of{};
  int64_t num_parts = 1;  ///< of a step: ranks with a loss of their own, times micro-batches
  int64_t step = 0;
  int64_t num_forwards = 0, num_backwards = 0;      ///< of the step
  int64_t num_losses = 0;                           ///< whose backward() was called
  int last_backward = -1;                           ///< its graph task
  std::unique_ptr<BackwardWatch> backward_watch{};  ///< from a forward of the first step until its backward
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<torch::optim::LRScheduler*> schedulers{};
  std::map<std::filesystem::path, std::unique_ptr<ModuleCheckpoint>> checkpoints{};  ///< by run
  std::map<std::filesystem::path, int64_t> last_steps{};                             ///< loaded or saved
};

ParallelModel::ParallelModel(const Trainable& net, const Mesh& on, const std::vector<Technique>& techniques,
                             const ParallelOptions& given, at::Device device) {
  if (given.micro_batches < 1)
    refuse_model("micro_batches", fmt::format("is {}", given.micro_batches), "use 1 or more");
  if (!on.has("dp"))
    refuse_model("mesh", "has no axis dp", "give it one, of size 1 if all ranks hold parts of one model");
  Mesh mesh = on;
  ParallelOptions options = given;
  std::unique_ptr<ModuleAdapter> adapter = net.adapted(mesh);
  Module& model = adapter != nullptr ? *adapter : *net.model_;
  const StrategyChoice choice = choice_of(techniques, model, mesh, adapter != nullptr, options.micro_batches);
  Strategy strategy = make_strategy(choice, model, mesh);
  strategy.find_unused_parameters = options.find_unused_parameters;
  strategy.static_graph = options.static_graph;
  strategy.buffers = options.buffers;
  strategy.has_static_shapes = options.has_static_shapes;
  state_ = std::make_shared<State>(std::move(adapter), model, mesh, std::move(strategy), options, device);
}

ParallelModel::~ParallelModel() = default;
ParallelModel::ParallelModel(ParallelModel&&) noexcept = default;

double ParallelModel::step(const at::Tensor& x, const at::Tensor& y, const Loss& loss) {
  State& state = *state_;
  const int64_t parts = state.options.micro_batches;
  if (x.dim() == 0 || y.dim() == 0 || x.size(0) != y.size(0) || x.size(0) < parts) {
    refuse_model("step",
                 fmt::format("got {} and {} rows for {} micro-batches", x.dim() == 0 ? 0 : x.size(0),
                             y.dim() == 0 ? 0 : y.size(0), parts),
                 "give both the same number of rows, at least one for each micro-batch");
  }
  if (state.options.average && x.size(0) % parts != 0) {
    refuse_model(
        "step",
        fmt::format("{} rows are not a multiple of {} micro-batches, whose means are averaged", x.size(0), parts),
        "give it a multiple, or use a sum as the loss without ParallelOptions::average");
  }
  state.check_whole_outputs("step");
  if (!state.options.static_graph) {
    refuse_model("step", "follows a schedule, and static_graph is false", "call forwards and backwards of your own");
  }
  if (!loss) refuse_model("loss", "is no function", "pass what makes one number of an output and a target");
  state.check_rows(x.size(0));
  state.check_same(x, y, /*is_whole=*/false);
  const Tensors inputs = x.tensor_split(parts), targets = y.tensor_split(parts);
  state.loss_of = [&](const Tensors& outputs, int micro_batch) {
    at::Tensor value = loss(outputs.at(0), targets[static_cast<size_t>(micro_batch)]);
    if (value.numel() != 1) {
      refuse_model("loss", fmt::format("has {} elements", value.numel()), "return one number, a sum or a mean");
    }
    if (state.step == 0 && micro_batch == 0 && state.num_parts > 1) {
      const std::string mean = state.checks_loss() ? mean_that_makes(value) : "";
      if (!mean.empty()) refuse_mean(mean, state.num_parts);
      check_kind(loss, outputs.at(0).detach(), targets[0], state.options.average, state.num_parts);
    }
    return state.options.average ? value * state.gradient_scale() : value;
  };
  struct Clear {
    State& state;
    ~Clear() { state.loss_of = nullptr; }
  } const clear{state};
  return state.run_step(
      [&](int m) { return MicroBatch{.ids = inputs[static_cast<size_t>(m)], .context = state.context(m)}; });
}

double ParallelModel::step(const at::Tensor& ids, const at::Tensor& labels) {
  State& state = *state_;
  if (state.adapter != nullptr) {
    refuse_model("step", "a module of your own has no loss", "pass a function as third argument");
  }
  if (ids.dim() != 2 || ids.sizes() != labels.sizes()) {
    refuse_model(
        "step",
        fmt::format("got ids [{}] and labels [{}]", fmt::join(ids.sizes(), ", "), fmt::join(labels.sizes(), ", ")),
        "give [rows, positions] of both");
  }
  if (ids.size(0) == 0 || ids.size(0) % state.num_parts_of_rows() != 0) {
    refuse_model("step",
                 fmt::format("{} rows are not a multiple of {} parts: ranks of dp times micro-batches", ids.size(0),
                             state.num_parts_of_rows()),
                 "give it a multiple");
  }
  state.check_same(ids, labels, /*is_whole=*/true);
  const int64_t targets = ids.is_meta() ? labels.numel() : labels.ne(kIgnoredLabel).sum().item<int64_t>();
  const TrainBatch piece =
      piece_of_rank(state.engine, {.ids = ids, .labels = labels, .global_rows = ids.size(0), .num_targets = targets});
  return state.run_step(
      [&](int m) { return micro_batch_of(piece, state.options.micro_batches, m, state.seed(), state.step); });
}

Tensors ParallelModel::forward(Tensors inputs) {
  State& state = *state_;
  state.check_whole_outputs("forward");
  ForwardContext context = state.context(static_cast<int>(state.num_forwards));
  if (!at::GradMode::is_enabled()) {
    if (state.is_pipelined())
      refuse_model("forward", "this rank has some of the stages of a pipeline", "call evaluate()");
    context.phase = Phase::evaluate;
    return state.engine.model().run(std::move(inputs), context);
  }
  state.begin_forward(inputs.empty() || inputs[0].dim() == 0 ? -1 : inputs[0].size(0));
  context.micro_batch = static_cast<int>(state.num_forwards - 1);
  Tensors outputs = state.engine.model().run(std::move(inputs), context);
  const auto is_reached = std::make_shared<bool>(false);
  bool has_gradient = false;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    has_gradient = true;
    output.register_hook([self = state.weak_from_this(), is_reached](const at::Tensor&) {
      if (const auto locked = self.lock()) locked->see_gradient(is_reached);
    });
  }
  if (!has_gradient) refuse_model("forward", "no output depends on a parameter that is trained", "train one at least");
  return outputs;
}

void ParallelModel::abandon_step() {
  state_->num_forwards = state_->num_backwards = 0;
  state_->backward_watch.reset();
}

at::Tensor ParallelModel::operator()(const at::Tensor& input) { return forward({input}).at(0); }

at::Tensor ParallelModel::evaluate(const at::Tensor& input) {
  State& state = *state_;
  state.check_whole_outputs("evaluate");
  if (state.num_forwards != state.num_backwards) {
    refuse_model("evaluate", "a forward waits for its backward",
                 "call it between steps, or use model(x) with at::NoGradGuard");
  }
  at::Tensor output;
  {
    const EvaluationScope scope(state.engine);
    MicroBatch batch{.ids = input, .context = state.context(0)};
    batch.context.phase = Phase::evaluate;
    output = state.runner.evaluate(batch);
  }
  return state.is_pipelined() ? state.from_last_stage(output) : output;
}

std::vector<at::Tensor> ParallelModel::parameters() const { return state_->engine.parameters(); }

std::vector<at::Tensor> ParallelModel::whole_parameters() const {
  const Mesh& mesh = state_->mesh;
  const Strategy& strategy = state_->engine.strategy();
  for (const Parameter* parameter : state_->engine.model().parameters()) {
    for (const MeshAxis& axis : mesh.axes()) {
      const bool is_pipeline = axis.name() == strategy.pipeline_axis;
      if (axis.size() == 1 || is_pipeline || !parameter->requires_grad()) continue;
      if (!parameter->sharded_layout().has(axis.name()) || !parameter->sharded_layout()[axis.name()].is_shard())
        continue;
      throw UsageError(
          {"whole_parameters", parameter->name(),
           fmt::format("is sharded over {} by {}, and the optimizer needs it whole", axis.name(), strategy.name),
           mesh.where(), "use ddp(), which keeps parameters whole, or an element-wise optimizer"});
    }
  }
  return parameters();
}

double ParallelModel::clip_grad_norm(double max_norm) {
  FlatState& flat = state_->engine.state();
  const double norm = grad_norm(flat, state_->mesh);
  caravan::clip_grad_norm(flat, norm, max_norm);
  return norm;
}

void ParallelModel::attach(torch::optim::Optimizer& optimizer) {
  if (!state_->checkpoints.empty()) refuse_model("attach", "comes after load() or save()", "attach first");
  if (state_->optimizer != nullptr) refuse_model("attach", "the model has an optimizer", "attach one");
  state_->optimizer = &optimizer;
}

void ParallelModel::attach(torch::optim::LRScheduler& scheduler) {
  if (!state_->checkpoints.empty()) refuse_model("attach", "comes after load() or save()", "attach first");
  state_->schedulers.push_back(&scheduler);
}

void ParallelModel::check_finite() const {
  double bad = 0;
  std::string name;
  for (const Parameter* parameter : state_->engine.model().parameters()) {
    if (at::isfinite(parameter->sharded()).all().item<bool>()) continue;
    if (name.empty()) name = parameter->name();
    ++bad;
  }
  const at::Tensor all = at::full({1}, bad, at::kDouble);
  all_reduce_async(state_->mesh.world(), all, all, ReduceOp::sum, "finite").wait();
  if (all.item<double>() == 0) return;
  throw NumericsError({"save", name, "the weights are not finite, and are not saved", state_->mesh.where(),
                       "continue from an older checkpoint, with a lower learning rate or clip_grad_norm()"});
}

Progress ParallelModel::load(const std::filesystem::path& run) {
  Progress progress = state_->checkpoint_in(run).load();
  const auto steps = progress.counters.find(kModelSteps);
  state_->step = steps == progress.counters.end() ? progress.step : steps->second;
  if (steps != progress.counters.end()) progress.counters.erase(steps);
  state_->last_steps[key_of(run)] = progress.step;
  return progress;
}

SavedCheckpoint ParallelModel::save(const std::filesystem::path& run, const Progress& progress) {
  const auto last = state_->last_steps.find(key_of(run));
  const int64_t least = last == state_->last_steps.end() ? 0 : last->second;
  if (progress.step < least) {
    refuse_model("save", fmt::format("step {} comes before step {} of {}", progress.step, least, run.string()),
                 "count on from what load() returns, or name another folder");
  }
  check_finite();
  Progress saved = progress;
  if (progress.step != state_->step) saved.counters[kModelSteps] = state_->step;
  state_->last_steps[key_of(run)] = progress.step;
  return state_->checkpoint_in(run).save(saved);
}

Module& ParallelModel::module() noexcept { return state_->engine.model(); }
Engine& ParallelModel::engine() noexcept { return state_->engine; }
const Mesh& ParallelModel::mesh() const noexcept { return state_->mesh; }
int64_t ParallelModel::num_parts() const noexcept { return state_->num_parts; }

ParallelModel parallelize(const Trainable& net, const Session& session, const std::vector<Technique>& techniques,
                          ParallelOptions options) {
  if (!options.seed) options.seed = session.seed();
  return {net, session.mesh(), techniques, options};
}

}  // namespace caravan
