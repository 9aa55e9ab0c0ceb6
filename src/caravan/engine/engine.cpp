#include "caravan/engine/engine.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/engine/agreement.h"

namespace caravan {
namespace {

/// The .grad of a user's tensor that an optimizer must not update, because the sharded parameter is a separate tensor.
/// Without it, an optimizer that has the tensor would find no gradient, skip it and train nothing. Reading it throws.
at::Tensor no_gradient(const Parameter& parameter) {
  if (!parameter.is_external() || parameter.unsharded().is_same(parameter.sharded()) || parameter.unsharded().is_meta())
    return {};
  at::Tensor none =
      without_memory(parameter.unsharded().sizes().vec(), parameter.unsharded().options().requires_grad(false));
  take_away(none, fmt::format("[gradient] {}: is not here: the module computes with copies of the sharded parameters. "
                              "do: give the optimizer engine.parameters() instead of module->parameters()",
                              parameter.name()));
  return none;
}

/// The .grad of a parameter whose gradient rests on disk. Reading it throws.
at::Tensor gradient_on_disk(const Slot& slot, const at::TensorOptions& options) {
  return without_memory(slot.sharded_shape, options,
                        fmt::format("[gradient] {}: rests on disk. do: use an optimizer of this library "
                                    "(caravan/optim/optimizer.h), or offload gradients to the host",
                                    slot.parameter->name()));
}

const std::string& name_of(const Units& units, int unit) { return units.units[static_cast<size_t>(unit)].name; }

std::string_view path_of(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::forward: return "schedule: forward";
    case Action::Kind::recompute: return "schedule: recompute";
    case Action::Kind::backward: return "schedule: backward";
    case Action::Kind::weight: return "schedule: weight gradients";
    case Action::Kind::gather: return "schedule: gather";
    case Action::Kind::free: return "schedule: free";
    case Action::Kind::reduce: return "schedule: reduce";
    case Action::Kind::send: return "schedule: send";
    case Action::Kind::recv: return "schedule: recv";
    case Action::Kind::update: return "schedule: update";
    case Action::Kind::fetch: return "schedule: fetch";
    case Action::Kind::evict: return "schedule: evict";
    case Action::Kind::step: return "schedule: step of a group";
  }
  return "schedule: ?";
}

/// Data parallelism that cuts parameters has cut the chunks.
Strategy with_chunks(Strategy strategy, const Mesh& mesh) {
  if (strategy.chunks.is_used && strategy.parameters_tier == Tier::device) {
    throw UsageError({"chunks", "parameters", "rest on the device, where they are in no chunks", "",
                      "offload them: add_offload(strategy, {.parameters = Tier::host})"});
  }
  lay_out_chunks(strategy, strategy, mesh, /*num_parts=*/1);
  return strategy;
}

std::string_view pass_name(Action::Kind kind) {
  if (kind == Action::Kind::forward) return "forward";
  return kind == Action::Kind::recompute ? "recompute" : "backward";
}

}  // namespace

Engine::Engine(Module& model, const Mesh& mesh, Strategy strategy, const Options& options)
    : model_(model),
      mesh_(mesh),
      strategy_(with_chunks(std::move(strategy), mesh)),
      options_(options),
      weight_work_(mesh_.deferred()),
      state_{.layout = FlatLayout(strategy_, mesh_)} {
  check_agreement();
  take_parameters();
  pool_ = std::make_unique<BufferPool>(mesh_.world(), state_.values.is_meta());
  unsharded_ = std::make_unique<UnshardedParameters>(state_, strategy_, *pool_, transfers_);
  gradients_ = std::make_unique<GradientSums>(state_, strategy_, *pool_, transfers_);
  buffers_ = std::make_unique<ModelBuffers>(model_, strategy_, mesh_);
  for (const Slot& slot : state_.layout.slots()) {
    const bool is_trained = slot.parameter->requires_grad();
    if (is_trained) trained_.push_back(slot.parameter);
    // Detached: torch's zero_grad refuses views that autograd tracks.
    sharded_gradients_.push_back(!is_trained ? at::Tensor()
                                 : state_.gradients.is_on_disk()
                                     ? gradient_on_disk(slot, state_.gradients.options())
                                     : state_.layout.view(state_.gradients, *slot.parameter).detach());
    no_gradients_.push_back(is_trained ? no_gradient(*slot.parameter) : at::Tensor());
  }
  for (Parameter* parameter : trained_) parameter->set_sink(this);
  unsharded_->refresh();
  if (strategy_.stashes_weights())
    versions_ = std::make_unique<WeightVersions>(state_, unsharded_->dtype(), strategy_.batch_of_versions);
  const auto moves = [](const Strategy::Unit& unit) { return unit.moves_activations; };
  if (strategy_.activations_tier != Tier::device && std::ranges::any_of(strategy_.units, moves))
    activations_ = std::make_unique<Activations>(strategy_.tiers, strategy_.activations_tier);
  add_unit_hooks();
}

Engine::~Engine() {
  for (Parameter* parameter : trained_) parameter->set_sink(nullptr);
}

std::vector<at::Tensor> Engine::parameters() const {
  std::vector<at::Tensor> all;
  for (const Slot& slot : state_.layout.slots()) {
    if (slot.parameter->requires_grad()) all.push_back(slot.parameter->sharded());
  }
  return all;
}

const Schedule& Engine::table(int num_micro_batches) {
  if (!strategy_.static_graph) {
    throw UsageError({strategy_.name, "static_graph", "there is no table of steps that may differ", mesh_.where(),
                      "use begin_step() and finish_step(), or set static_graph"});
  }
  auto found = strategy_tables_.find(num_micro_batches);
  if (found == strategy_tables_.end()) {
    Schedule table = agreed_table(strategy_, state_.layout.units(), num_micro_batches, mesh_);
    found = strategy_tables_.emplace(num_micro_batches, std::move(table)).first;
  }
  return found->second;
}

const Schedule* Engine::recorded(int num_micro_batches) const {
  const auto found = recorded_.find(num_micro_batches);
  return found == recorded_.end() ? nullptr : &found->second;
}

int64_t Engine::bytes_per_rank() const noexcept {
  return state_.parameter_bytes + state_.gradient_bytes + buffer_bytes();
}

// ---- a step ----

void Engine::start(int num_micro_batches) {
  if (num_micro_batches < 1) {
    throw UsageError({strategy_.name, "begin_step", fmt::format("{} micro-batches", num_micro_batches), "",
                      "give the number of backward passes of the step, at least 1"});
  }
  if (is_evaluating_) {
    throw UsageError({strategy_.name, "begin_step", "an evaluation is open", "",
                      "call end_evaluation() first; a TextModel of the engine keeps one open"});
  }
  if (trained_.empty()) {
    throw UsageError({strategy_.name, "model", "no parameter requires a gradient", mesh_.where(),
                      "train at least one, or run evaluations only"});
  }
  for (const Slot& slot : state_.layout.slots()) {
    slot.parameter->sharded().mutable_grad() = at::Tensor();
    slot.parameter->unsharded().mutable_grad() = at::Tensor();
  }
  num_micro_batches_ = num_micro_batches;
  attendance_ = full_attendance(strategy_, mesh_);
  running_.clear();  // left by a forward that threw
  unsharded_->check_memory();
  free_all();
  ++num_steps_;
  transfers_.clear();
  weight_work_.begin_step();
  if (activations_ != nullptr) activations_->begin_step();
  unsharded_->refresh(/*may_lag=*/true);
  if (versions_ != nullptr) versions_->begin_step();
  gradients_->begin_step();
  num_forwards_.assign(strategy_.units.size(), 0);
  passes_ = nullptr;
  if (strategy_.is_offloaded()) host_guard_ = std::make_unique<HostGuard>(*strategy_.tiers);
}

void Engine::begin_step(int num_micro_batches) {
  if (strategy_.num_stages() > 1) {
    throw UsageError({strategy_.name, "begin_step", "a pipeline does not run as one forward and one backward", "",
                      "call run_step() with a StageRunner"});
  }
  start(num_micro_batches);
  const auto recorded = recorded_.find(num_micro_batches);
  if (recorded == recorded_.end()) {
    mode_ = Mode::recording;
    cursor_.end();
    recorder_.begin();
    return;
  }
  begin_table(recorded->second);
}

void Engine::begin_table(const Schedule& table) {
  mode_ = Mode::following;
  cursor_.begin(table);
}

void Engine::finish_step() {
  if (mode_ == Mode::idle) {
    throw UsageError({strategy_.name, "finish_step", "no step has begun", "", "call begin_step() first"});
  }
  weight_work_.run_all();
  if (mode_ == Mode::recording) {
    finish_recording();
  } else if (!attendance_.is_here) {
    follow_absent();
  } else {
    perform_until_event();
    if (!cursor_.is_at_end()) refuse(cursor_.entry(), "was never reached");
  }
  end_step();
}

void Engine::end_step() {
  buffers_->start(transfers_, attendance_);
  if (!strategy_.static_graph || !attendance_.is_full()) agree_on_used();
  TraceLog::end_lap();
  gradients_->finish();
  end_reading();
  if (activations_ != nullptr) activations_->settle();
  if (strategy_.is_offloaded()) {
    strategy_.tiers->finish_stores();
    strategy_.tiers->check();
    host_guard_ = nullptr;
  }
  // While a step is recorded, the pool holds the gradients of all units at once. Under offload memory is scarce: the
  // forward does not keep what only the backward needs.
  if (mode_ == Mode::recording || strategy_.is_offloaded()) pool_->trim();
  mode_ = Mode::idle;
  last_alone_ = -1;
  for (size_t i = 0; i < sharded_gradients_.size(); ++i) {
    if (!sharded_gradients_[i].defined()) continue;
    Parameter& parameter = *state_.layout.slots()[i].parameter;
    parameter.sharded().mutable_grad() = sharded_gradients_[i];
    if (no_gradients_[i].defined()) parameter.unsharded().mutable_grad() = no_gradients_[i];
  }
}

/// Returns to the state between steps, also if a pass throws.
struct Engine::Reset {
  Engine& engine;
  ~Reset() {
    engine.mode_ = Mode::idle;
    engine.cursor_.end();
    engine.passes_ = nullptr;
    engine.host_guard_ = nullptr;
    engine.set_exchange(nullptr);
  }
};

void Engine::set_exchange(StepExchange* exchange) noexcept {
  exchange_ = exchange;
  unsharded_->set_exchange(exchange);
  gradients_->set_exchange(exchange);
}

void Engine::run_step(int num_micro_batches, Passes& passes, StepExchange* exchange) {
  if (exchange != nullptr &&
      (strategy_.unsharded_memory != UnshardedMemory::versions || strategy_.reduces_each_micro_batch)) {
    throw InternalError({strategy_.name, "run_step",
                         "an exchange needs unsharded parameters that are versions, reduced once a step", mesh_.where(),
                         ""});
  }
  start(num_micro_batches);
  begin_table(table(num_micro_batches));
  const Reset reset{*this};
  set_exchange(exchange);
  follow(passes);
  end_step();
}

void Engine::run_local_step(int num_micro_batches, Passes& passes) {
  start(num_micro_batches);
  Schedule local = table(num_micro_batches);
  std::erase_if(local, [](const Action& entry) {
    return entry.kind == Action::Kind::reduce || entry.kind == Action::Kind::step;
  });
  begin_table(local);
  const Reset reset{*this};
  follow(passes);
  end_reading();
}

void Engine::follow(Passes& passes) {
  passes_ = &passes;
  for (perform_until_event(); !cursor_.is_at_end(); perform_until_event()) {
    const Action entry = cursor_.entry();
    const size_t before = cursor_.position();
    run_pass(entry, passes);
    if (cursor_.position() == before) refuse(entry, "was not reached by the pass that it begins");
    check_skipped(entry);
  }
  passes_ = nullptr;
}

/// Runs the pass that begins with `first`, which reaches its other events.
void Engine::run_pass(const Action& first, Passes& passes) {
  const int stage = state_.layout.units().units[static_cast<size_t>(first.unit)].stage;
  const TraceSpan span(TraceLog::kCompute, pass_name(first.kind), std::to_string(first.micro_batch),
                       {{"stage", stage}, {"micro_batch", first.micro_batch}});
  if (first.kind == Action::Kind::forward) {
    if (versions_ != nullptr) versions_->begin(first.micro_batch);
    return passes.forward(stage, first.micro_batch);
  }
  if (versions_ != nullptr) versions_->use(first.micro_batch);
  if (first.kind == Action::Kind::recompute) return passes.recompute(stage, first.micro_batch);
  passes.backward(stage, first.micro_batch);
  TraceLog::end_lap();
  weight_work_.end();
  if (versions_ != nullptr) versions_->release(first.micro_batch);
}

/// Called after a backward. Whether the gradient reaches a frozen unit inside another depends on what that one computes
/// first: the table assumes that it does.
void Engine::check_skipped(const Action& first) const {
  if (first.kind != Action::Kind::backward) return;
  const Action* next = cursor_.next_event();
  if (next == nullptr || next->kind != Action::Kind::backward || next->micro_batch != first.micro_batch) return;
  const auto& units = state_.layout.units().units;
  if (units[static_cast<size_t>(next->unit)].stage != units[static_cast<size_t>(first.unit)].stage) return;
  throw UsageError({strategy_.name, name_of(state_.layout.units(), next->unit),
                    "no gradient reaches it: neither it nor any unit before it is trained", mesh_.where(),
                    "leave it out of the units (data_parallel.units), or train something in it"});
}

// ---- events ----

void Engine::reach(const Action& event) {
  check_present();
  if (MemoryCounter& memory = MemoryCounter::current(); memory.budget() > 0) {
    memory.set_event(fmt::format("{} of {}, micro-batch {}", pass_name(event.kind),
                                 name_of(state_.layout.units(), event.unit), event.micro_batch));
  }
  count_path(path_of(event.kind));
  weight_work_.reach();
  if (activations_ != nullptr) activations_->settle();
  if (event.kind != Action::Kind::recompute) TraceLog::end_lap();  // a recompute is part of the backward
  if (event.kind == Action::Kind::forward) gradients_->pass_forward();
  if (event.kind == Action::Kind::backward) {
    weight_work_.begin(event, mode_ == Mode::following && cursor_.has_weight_entry(event));
  }
  if (mode_ == Mode::recording) {
    gather_for(event.unit);
    recorder_.add(event);
    if (activations_ != nullptr && event.kind == Action::Kind::forward) activations_->evict_ended();
    if (activations_ != nullptr && event.kind == Action::Kind::backward)
      activations_->fetch(event.unit, event.micro_batch);
  } else if (mode_ == Mode::following) {
    perform_until_event();
    if (cursor_.is_at_end() || !(cursor_.entry() == event)) refuse(event, "comes out of order");
    cursor_.advance();
  }
  for (const int group : state_.layout.units().units[static_cast<size_t>(event.unit)].groups) unsharded_->wait(group);
  transfers_.poll();
  if (passes_ != nullptr) passes_->poll();
  if (exchange_ != nullptr) exchange_->poll();
  if (event.kind != Action::Kind::backward) return;
  TraceLog::begin_lap(TraceLog::kCompute, "backward", name_of(state_.layout.units(), event.unit),
                      {{"micro_batch", event.micro_batch}});
}

void Engine::perform_until_event() {
  cursor_.perform_until_event([this](const Action& entry) { perform(entry); });
}

void Engine::perform(const Action& entry) {
  count_path(path_of(entry.kind));
  switch (entry.kind) {
    case Action::Kind::gather: unsharded_->gather(entry.unit); break;
    case Action::Kind::free: unsharded_->free(entry.unit, /*keeps_slot=*/true); break;
    case Action::Kind::reduce:
      unsharded_->wait(entry.unit);
      gradients_->reduce(entry.unit, mode_ != Mode::following || cursor_.ends_reductions());
      break;
    case Action::Kind::weight:
      for (const int group : state_.layout.units().groups_of(entry)) unsharded_->wait(group);
      run_deferred(entry);
      break;
    case Action::Kind::send:
    case Action::Kind::recv: passes_->transfer(entry); break;
    case Action::Kind::update: update(entry); break;
    case Action::Kind::fetch:
    case Action::Kind::evict: move(entry); break;
    case Action::Kind::step:
      if (group_step_) group_step_(entry.unit);
      break;
    default: break;
  }
}

void Engine::move(const Action& entry) {
  const bool fetches = entry.kind == Action::Kind::fetch;
  switch (entry.moved) {
    case Action::Moved::parameters: fetches ? unsharded_->fetch(entry.unit) : unsharded_->drop(entry.unit); break;
    case Action::Moved::gradients: fetches ? gradients_->fetch(entry.unit) : gradients_->evict(entry.unit); break;
    case Action::Moved::activations:
      if (activations_ == nullptr) break;
      fetches ? activations_->fetch(entry.unit, entry.micro_batch) : activations_->evict(entry.unit, entry.micro_batch);
      break;
  }
}

/// A step ends with an update, which the caller performs. Stages that step on their own have further updates.
void Engine::update(const Action& entry) {
  if (versions_ == nullptr) return;
  gradients_->finish();
  passes_->update(entry.micro_batch);
  versions_->renew();
  if (cursor_.has_more()) gradients_->begin_step();
}

void Engine::run_deferred(const Action& weight) {
  const TraceSpan span(TraceLog::kCompute, "weight gradients", name_of(state_.layout.units(), weight.unit),
                       {{"micro_batch", weight.micro_batch}});
  if (!weight_work_.run(weight)) refuse(weight, "comes before its backward");
}

void Engine::defer(Parameter&, std::function<void()> work) { weight_work_.push(std::move(work)); }

GradientSink::Sum Engine::sum_of(Parameter& parameter) {
  if (mode_ != Mode::idle) return gradients_->sum_of(parameter);
  throw UsageError({strategy_.name, parameter.name(), "a gradient arrives outside of a step", "",
                    "call begin_step() before the first backward of a step"});
}

void Engine::refuse(const Action& event, const char* fact) const {
  const std::string& unit = name_of(state_.layout.units(), event.unit);
  throw UsageError(
      {strategy_.name, fmt::format("{} (unit '{}')", event.to_string(), unit), fact,
       fmt::format("{}, {}", mesh_.where(), cursor_.place()),
       "run the units of every step in the same order; Phase::evaluate for passes that are not part of it"});
}

}  // namespace caravan
