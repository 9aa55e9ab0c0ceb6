#include "caravan/session/parallelize.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/session/cuts.h"
#include "caravan/session/parallel_state.h"
#include "caravan/session/technique_choice.h"
#include "caravan/step/batch.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {
ParallelModel::ParallelModel(const Trainable& net, const Mesh& on, const std::vector<Technique>& techniques,
                             const ParallelOptions& given, at::Device device) {
  if (given.micro_batches < 1)
    refuse_model("micro_batches", fmt::format("is {}", given.micro_batches), "use 1 or more");
  if (!on.has("dp"))
    refuse_model("mesh", "has no axis dp", "give it one, of size 1 if all ranks hold parts of one model");
  Mesh mesh = on;
  ParallelOptions options = given;
  std::unique_ptr<ModuleAdapter> adapter = net.adapted(mesh, tensor_layouts(techniques, net, mesh));
  Module& model = adapter != nullptr ? *adapter : *net.model_;
  const StrategyChoice choice = choice_of(techniques, model, mesh, adapter != nullptr, options.micro_batches);
  Strategy strategy = make_strategy(choice, model, mesh);
  strategy.find_unused_parameters = options.find_unused_parameters;
  strategy.static_graph = options.static_graph;
  strategy.buffers = options.buffers;
  strategy.has_static_shapes = options.has_static_shapes;
  state_ = std::make_shared<State>(std::move(adapter), model, mesh, std::move(strategy), options, device);
  state_->set_budget(parse_bytes(choice.offload.text("device_budget")).value_or(0));
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
  if (state.is_pipelined()) {
    refuse_model("forward", "this rank has some of the stages of a pipeline", "call step(), or evaluate()");
  }
  if (!at::GradMode::is_enabled()) {
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

std::vector<at::Tensor> ParallelModel::parameters() const {
  state_->check_in_memory("parameters");
  return state_->engine.parameters();
}

std::vector<at::Tensor> ParallelModel::whole_parameters() {
  State& state = *state_;
  state.check_in_memory("whole_parameters");
  if (!state.takes_whole && first_cut(state.engine)) {
    state.check_no_checkpoint("whole_parameters");
    state.whole = std::make_unique<WholeParameters>(state.engine);
    state.whole_step = state.step;
  }
  state.takes_whole = true;
  return state.whole ? state.whole->tensors() : parameters();
}

void ParallelModel::update_whole(const std::function<void()>& update) {
  if (!state_->takes_whole) {
    refuse_model("update_whole", "has no optimizer of whole parameters", "make it from whole_parameters()");
  }
  if (!state_->whole) return all_or_none(state_->mesh.world(), update, "update of whole parameters");
  state_->whole->update(update);
  state_->whole_step = state_->step;
}

double ParallelModel::clip_grad_norm(double max_norm) {
  const double norm = state_->norm_of_gradients();
  caravan::clip_grad_norm(state_->engine.state(), norm, max_norm);
  return norm;
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
