#include "caravan/session/parallelize.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/registry/registry.h"
#include "caravan/session/loss_check.h"
#include "caravan/techniques/make_strategy.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

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
  if (std::ranges::find(given, "pipeline") != given.end() && !choice.pipeline.is_used()) {
    refuse_model("pipeline", "the mesh has no axis pp", "make the session with pp above 1");
  }
  if (const int64_t asked = choice.pipeline.micro_batches(); choice.pipeline.is_used() && asked != 0) {
    if (micro_batches != 1 && micro_batches != asked) {
      refuse_model("micro_batches", fmt::format("is {}, and {} for the pipeline", micro_batches, asked),
                   "give one of them");
    }
    micro_batches = asked;
  }
  choice.pipeline.schedule.set("micro_batches", micro_batches);
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

}  // namespace

struct ParallelModel::State : std::enable_shared_from_this<State> {
  State(std::unique_ptr<ModuleAdapter> adapted, Module& model, const Mesh& on, Strategy strategy,
        const ParallelOptions& given, at::Device device)
      : adapter(std::move(adapted)),
        mesh(on),
        options(given),
        engine(model, mesh, std::move(strategy), {.seed = given.seed, .device = device}),
        runner(engine) {
    for (const auto& [axis, placement] : engine.strategy().loss_layout.entries()) {
      const bool is_of_stages = axis == engine.strategy().pipeline_axis;
      if (!is_of_stages && placement.is_partial()) num_parts *= mesh[axis].size();
    }
    num_parts *= options.micro_batches;
    loss_hook = model.blocks().back()->add_hook(
        [this](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
          Tensors outputs = next(std::move(inputs), context);
          return loss_of ? Tensors{loss_of(outputs, context.micro_batch)} : outputs;
        },
        Module::Place::outermost);
  }

  bool is_pipelined() const { return !engine.strategy().pipeline_axis.empty(); }
  ForwardContext context(int micro_batch) const {
    return {.seed = options.seed, .step = step, .micro_batch = micro_batch};
  }
  double gradient_scale() const { return options.average ? 1.0 / static_cast<double>(num_parts) : 1.0; }
  bool checks_loss() const { return !options.average && num_parts > 1 && step == 0; }
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

  // Steps of the caller's own.
  void begin_forward() {
    if (is_pipelined()) {
      refuse_model("forward", "this rank has some of the stages of a pipeline", "call step(), or evaluate()");
    }
    if (num_forwards == num_backwards && num_forwards == options.micro_batches) num_forwards = num_backwards = 0;
    if (num_forwards == options.micro_batches) {
      refuse_model("forward",
                   fmt::format("{} of {} micro-batches had no backward", num_forwards - num_backwards, num_forwards),
                   "call backward() after each forward, and evaluate with at::NoGradGuard");
    }
    backward_watch.reset();
    if (checks_loss()) backward_watch = std::make_unique<BackwardWatch>();
    if (num_forwards == 0) engine.begin_step(static_cast<int>(options.micro_batches));
    ++num_forwards;
  }
  void end_backward() {
    if (++num_backwards < options.micro_batches) return;
    engine.finish_step();
    ++step;
  }
  /// The backward of the caller's loss comes to an output.
  at::Tensor pass_gradient(const at::Tensor& gradient, const std::shared_ptr<bool>& is_reached) {
    if (!std::exchange(*is_reached, true)) {
      const std::string mean = backward_watch ? backward_watch->mean() : "";
      if (!mean.empty()) refuse_mean(mean, num_parts);
      torch::autograd::Engine::get_default_engine().queue_callback([state = weak_from_this()] {
        if (const auto self = state.lock()) self->end_backward();
      });
    }
    return options.average && num_parts > 1 ? gradient * gradient_scale() : gradient;
  }

  ModuleCheckpoint& checkpoint_in(const std::filesystem::path& run) {
    if (!checkpoint || folder != run) {
      checkpoint = std::make_unique<ModuleCheckpoint>(run, engine, optimizer);
      for (auto* scheduler : schedulers) checkpoint->add_scheduler(*scheduler);
      folder = run;
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
  std::unique_ptr<BackwardWatch> backward_watch{};  ///< from a forward of the first step until its backward
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<torch::optim::LRScheduler*> schedulers{};
  std::filesystem::path folder{};
  std::unique_ptr<ModuleCheckpoint> checkpoint{};
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
  const Tensors inputs = x.tensor_split(parts), targets = y.tensor_split(parts);
  state.loss_of = [&](const Tensors& outputs, int micro_batch) {
    at::Tensor value = loss(outputs.at(0), targets[static_cast<size_t>(micro_batch)]);
    if (value.numel() != 1) {
      refuse_model("loss", fmt::format("has {} elements", value.numel()), "return one number, a sum or a mean");
    }
    if (state.checks_loss()) {
      if (const std::string mean = mean_that_makes(value); !mean.empty()) refuse_mean(mean, state.num_parts);
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
  if (state.adapter != nullptr)
    refuse_model("step", "a module of your own has no loss", "pass a function as third argument");
  const int64_t parts = state.options.micro_batches;
  if (ids.sizes() != labels.sizes() || ids.dim() != 2 || ids.size(0) < parts) {
    refuse_model("step",
                 fmt::format("got [{}] and [{}] for {} micro-batches", fmt::join(ids.sizes(), ", "),
                             fmt::join(labels.sizes(), ", "), parts),
                 "give [rows, positions] of both, and a row for each micro-batch at least");
  }
  double targets = 0;
  if (!ids.is_meta()) targets = state.all_of(labels.ne(kIgnoredLabel).sum().item<double>());
  const Tensors inputs = ids.tensor_split(parts), labelled = labels.tensor_split(parts);
  return state.run_step([&](int m) {
    ForwardContext context = state.context(m);
    if (targets > 0) context.loss_scale = 1 / targets;
    return MicroBatch{inputs[static_cast<size_t>(m)], labelled[static_cast<size_t>(m)], context};
  });
}

Tensors ParallelModel::forward(Tensors inputs) {
  State& state = *state_;
  ForwardContext context = state.context(static_cast<int>(state.num_forwards));
  if (!at::GradMode::is_enabled()) {
    if (state.is_pipelined())
      refuse_model("forward", "this rank has some of the stages of a pipeline", "call evaluate()");
    context.phase = Phase::evaluate;
    return state.engine.model().run(std::move(inputs), context);
  }
  state.begin_forward();
  context.micro_batch = static_cast<int>(state.num_forwards - 1);
  Tensors outputs = state.engine.model().run(std::move(inputs), context);
  const auto is_reached = std::make_shared<bool>(false);
  bool has_gradient = false;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    has_gradient = true;
    output.register_hook([self = state.weak_from_this(), is_reached](const at::Tensor& gradient) {
      const auto locked = self.lock();
      return locked ? locked->pass_gradient(gradient, is_reached) : gradient;
    });
  }
  if (!has_gradient) refuse_model("forward", "no output depends on a parameter that is trained", "train one at least");
  return outputs;
}

at::Tensor ParallelModel::operator()(const at::Tensor& input) { return forward({input}).at(0); }

at::Tensor ParallelModel::evaluate(const at::Tensor& input) {
  State& state = *state_;
  const EvaluationScope scope(state.engine);
  MicroBatch batch{.ids = input, .context = state.context(0)};
  batch.context.phase = Phase::evaluate;
  return state.runner.evaluate(batch);
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
  if (state_->checkpoint) refuse_model("attach", "comes after load() or save()", "attach first");
  state_->optimizer = &optimizer;
}

void ParallelModel::attach(torch::optim::LRScheduler& scheduler) {
  if (state_->checkpoint) refuse_model("attach", "comes after load() or save()", "attach first");
  state_->schedulers.push_back(&scheduler);
}

Progress ParallelModel::load(const std::filesystem::path& run) { return state_->checkpoint_in(run).load(); }

SavedCheckpoint ParallelModel::save(const std::filesystem::path& run, const Progress& progress) {
  return state_->checkpoint_in(run).save(progress);
}

Module& ParallelModel::module() noexcept { return state_->engine.model(); }
Engine& ParallelModel::engine() noexcept { return state_->engine; }
const Mesh& ParallelModel::mesh() const noexcept { return state_->mesh; }
int64_t ParallelModel::num_parts() const noexcept { return state_->num_parts; }

ParallelModel parallelize(const Trainable& net, const Session& session, const std::vector<Technique>& techniques,
                          ParallelOptions options) {
  options.seed = session.seed();
  return {net, session.mesh(), techniques, options};
}

}  // namespace caravan
