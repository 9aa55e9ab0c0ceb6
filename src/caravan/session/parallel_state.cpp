#include "caravan/session/parallel_state.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/tensor.h"
#include "caravan/module/finite.h"
#include "caravan/session/rank_checks.h"

namespace caravan {

void refuse_model(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"parallelize", subject, fact, "", action});
}

std::filesystem::path key_of_run(const std::filesystem::path& run) {
  return (std::filesystem::absolute(run) / "").lexically_normal();
}

ParallelModel::State::State(std::unique_ptr<ModuleAdapter> adapted, Module& model, const Mesh& on, Strategy strategy,
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
  if (!is_meta()) {
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

ParallelModel::State::~State() {
  if (counter != nullptr) counter->set_budget(0);
}

void ParallelModel::State::set_budget(int64_t bytes) {
  if (bytes == 0 || is_meta()) return;
  MemoryCounter& own = MemoryCounter::current();
  all_or_none(
      mesh.world(),
      [&] {
        if (own.budget() != 0) refuse_model("offload.device_budget", "another model has one", "set it for one of them");
        if (own.live_bytes() <= bytes) return;
        throw ResourceError({"parallelize", "offload.device_budget",
                             fmt::format("a rank holds {} before the first step, but may use {}",
                                         format_bytes(own.live_bytes()), format_bytes(bytes)),
                             mesh.where(), "raise it, offload more, or use fsdp() over more ranks"});
      },
      "device budget");
  counter = &own;
  own.set_event("a step");
  own.set_budget(bytes);
}

void ParallelModel::State::check_same(const at::Tensor& x, const at::Tensor& y, bool is_whole) const {
  if (step != 0 || x.is_meta()) return;
  const Layout& rows = engine.strategy().batch_layout;
  const std::string action = is_whole ? "give every rank the whole batch" : "give ranks of one replica the same rows";
  for (const MeshAxis& axis : mesh.axes()) {
    const bool has_own_rows = rows.has(axis.name()) && rows[axis.name()].is_shard();
    if (axis.size() == 1 || (has_own_rows && !is_whole)) continue;
    check_same_number(axis.comm(), checksum(x), "x of step(), over " + axis.name(), action);
    check_same_number(axis.comm(), checksum(y), "y of step(), over " + axis.name(), action);
  }
}

void ParallelModel::State::check_rows(int64_t rows) const {
  if (!options.average || is_meta()) return;
  check_same_number(mesh.world(), static_cast<double>(rows), "rows",
                    "give every rank as many, or use a sum as the loss without ParallelOptions::average");
}

void ParallelModel::State::check_whole_outputs(const char* op) const {
  if (adapter != nullptr || engine.strategy().plan == nullptr) return;
  refuse_model(op, "the layers or sequences of the model are split, and a rank has a part of its outputs",
               "call step(ids, labels)");
}

void ParallelModel::State::check_finite() {
  const auto check = [&] {
    for (const Parameter* parameter : engine.model().parameters()) {
      const FlatState& flat = engine.state();
      if (all_finite(flat.layout.read(flat.values, *parameter))) continue;
      throw NumericsError({"save", parameter->name(), "the weights are not finite, and are not saved", mesh.where(),
                           "continue from an older checkpoint, with a lower learning rate or clip_grad_norm()"});
    }
  };
  all_or_none(mesh.world(), check, "finite weights");
}

void ParallelModel::State::check_no_checkpoint(const char* op) const {
  if (!checkpoints.empty()) refuse_model(op, "comes after load() or save()", "call it before the first of them");
}

void ParallelModel::State::check_may_attach() const {
  check_no_checkpoint("attach");
  if (optimizer != nullptr || own_optimizer != nullptr)
    refuse_model("attach", "the model has an optimizer", "attach one");
}

void ParallelModel::State::check_in_memory(const char* op) const {
  const FlatState& flat = engine.state();
  if (flat.delay_after) {
    refuse_model(op, "updates are delayed, which no optimizer of torch::optim does",
                 "use one of this library, as in AdamW optimizer(model.engine().state()), or no delayed_update");
  }
  if (!flat.values.is_on_disk() && !flat.gradients.is_on_disk()) return;
  refuse_model(op,
               fmt::format("{} rest on disk, which no optimizer of torch::optim can update",
                           flat.values.is_on_disk() ? "parameters" : "gradients"),
               "use one of this library, as in AdamW optimizer(model.engine().state()), or offload them to \"host\"");
}

void ParallelModel::State::check_updated() const {
  constexpr int64_t kMostLeftOut = 3;  // on purpose, such as steps without finite gradients
  if (!whole || step < whole_step + kMostLeftOut) return;
  refuse_model("update_whole",
               fmt::format("was not called after {} steps in a row, so that no parameter changes", kMostLeftOut),
               "step the optimizer of whole_parameters() in it: model.update_whole([&] { optimizer.step(); }); if no "
               "update is meant, call model.update_whole([] {})");
}

double ParallelModel::State::run_step(const std::function<MicroBatch(int)>& batch_of) {
  check_updated();
  if (engine.state().gradients.is_on_disk()) {
    norm.emplace(mesh);
    engine.gradients().set_watch([this](const Slot& slot, const at::Tensor& gradient) { norm->add(slot, gradient); });
  }
  struct Unwatch {  // also if the step throws
    GradientSums& gradients;
    ~Unwatch() { gradients.set_watch({}); }
  };
  const double loss = [&] {
    const Unwatch unwatch{engine.gradients()};
    return runner.run_step(static_cast<int>(options.micro_batches), batch_of);
  }();
  ++step;
  if (is_meta()) return 0;
  at::Tensor all = at::scalar_tensor(engine.strategy().counts_loss(mesh) ? loss : 0.0, at::kDouble).reshape({1});
  all_reduce_async(mesh.world(), all, all, ReduceOp::sum, "loss").wait();
  return all.item<double>();
}

at::Tensor ParallelModel::State::from_last_stage(const at::Tensor& output) const {
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

void ParallelModel::State::begin_forward(int64_t rows) {
  if (num_forwards == num_backwards && num_forwards == options.micro_batches) num_forwards = num_backwards = 0;
  if (num_forwards == options.micro_batches) {
    refuse_model("forward",
                 fmt::format("{} of {} micro-batches had no backward", num_forwards - num_backwards, num_forwards),
                 "call backward() after each forward, evaluate with at::NoGradGuard, or abandon_step()");
  }
  backward_watch.reset();
  if (checks_loss()) backward_watch = std::make_unique<BackwardWatch>();
  if (num_forwards == 0) {
    check_updated();
    norm.reset();
    if (step == 0 && rows >= 0) check_rows(rows);
    num_losses = 0;
    engine.begin_step(static_cast<int>(options.micro_batches));
  }
  ++num_forwards;
}

void ParallelModel::State::see_gradient(const std::shared_ptr<bool>& is_reached) {
  if (std::exchange(*is_reached, true)) return;
  const int task = torch::autograd::get_current_graph_task_id();
  if (std::exchange(last_backward, task) != task) ++num_losses;
  const std::string mean = backward_watch ? backward_watch->mean() : "";
  if (!mean.empty()) refuse_mean(mean, num_parts);
  torch::autograd::Engine::get_default_engine().queue_callback([state = weak_from_this()] {
    if (const auto self = state.lock()) self->end_backward();
  });
}

void ParallelModel::State::end_backward() {
  if (++num_backwards < options.micro_batches) return;
  engine.finish_step();
  if (options.average && num_parts > 1) scale_gradients();
  ++step;
}

void ParallelModel::State::scale_gradients() {
  // A loss of several forwards is one part.
  const double scale = gradient_scale() * static_cast<double>(options.micro_batches) / static_cast<double>(num_losses);
  caravan::scale_gradients(engine.state(), scale);
}

double ParallelModel::State::norm_of_gradients() {
  if (!norm) return grad_norm(engine.state(), mesh);
  const double found = norm->finish(mesh.world());
  norm.reset();  // clipping changes it
  return found;
}

ModuleCheckpoint& ParallelModel::State::checkpoint_in(const std::filesystem::path& run) {
  std::unique_ptr<ModuleCheckpoint>& checkpoint = checkpoints[key_of_run(run)];
  if (!checkpoint) {
    checkpoint = own_optimizer != nullptr
                     ? std::make_unique<ModuleCheckpoint>(run, engine, *own_optimizer, 2, whole.get())
                     : std::make_unique<ModuleCheckpoint>(run, engine, optimizer, 2, whole.get());
    for (const auto& [name, each] : kept) checkpoint->add(name, each);
    for (auto* scheduler : schedulers) checkpoint->add_scheduler(*scheduler);
  }
  return *checkpoint;
}

}  // namespace caravan
