// What ParallelModel keeps from run to run.
#include <chrono>
#include <ratio>
#include <utility>
#include <vector>

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "caravan/comm/tensor.h"
#include "caravan/session/attachments.h"
#include "caravan/session/parallel_state.h"
#include "caravan/session/parallelize.h"
#include "caravan/session/stop_request.h"

namespace caravan {
namespace {

/// The counter of a checkpoint with the steps of the model, where its progress counts something else, such as epochs.
constexpr const char* kModelSteps = "model_steps";

}  // namespace

void ParallelModel::attach(torch::optim::Optimizer& optimizer) {
  state_->check_may_attach();
  state_->check_in_memory("attach");
  state_->optimizer = &optimizer;
}

void ParallelModel::attach(Optimizer& optimizer) {
  state_->check_may_attach();
  state_->own_optimizer = &optimizer;
}

void ParallelModel::attach(torch::optim::LRScheduler& scheduler) {
  state_->check_no_checkpoint("attach");
  if (state_->own_optimizer != nullptr) {
    refuse_model("attach", "an optimizer of this library has no scheduler", "give its step() the learning rate");
  }
  state_->schedulers.push_back(&scheduler);
}

void ParallelModel::attach(const std::string& name, Kept kept) {
  state_->check_no_checkpoint("attach");
  Attachments checks(state_->engine, state_->whole.get());
  checks.add(name, kept);  // throws, and here rather than in the first save
  for (const auto& [other, unused] : state_->kept) {
    if (other == name) refuse_model("attach", "'" + name + "' is attached already", "give it another name");
  }
  const std::string risk = checks.risk_of(name, kept);
  if (!risk.empty() && state_->mesh.rank() == 0) TORCH_WARN(risk);
  state_->kept.emplace_back(name, std::move(kept));
}

Progress ParallelModel::load(const std::filesystem::path& run) {
  Progress progress = state_->checkpoint_in(run).load();
  const auto steps = progress.counters.find(kModelSteps);
  state_->step = steps == progress.counters.end() ? progress.step : steps->second;
  state_->whole_step = state_->step;
  if (steps != progress.counters.end()) progress.counters.erase(steps);
  state_->last_steps[key_of_run(run)] = progress.step;
  state_->last_times[key_of_run(run)] = std::chrono::steady_clock::now();
  return progress;
}

SavedCheckpoint ParallelModel::save(const std::filesystem::path& run, const Progress& progress) {
  const auto last = state_->last_steps.find(key_of_run(run));
  const int64_t least = last == state_->last_steps.end() ? 0 : last->second;
  if (progress.step < least) {
    refuse_model("save", fmt::format("step {} comes before step {} of {}", progress.step, least, run.string()),
                 "count on from what load() returns, or name another folder");
  }
  state_->check_finite();
  Progress saved = progress;
  if (progress.step != state_->step) saved.counters[kModelSteps] = state_->step;
  state_->last_steps[key_of_run(run)] = progress.step;
  const SavedCheckpoint done = state_->checkpoint_in(run).save(saved);
  state_->last_times[key_of_run(run)] = std::chrono::steady_clock::now();
  return done;
}

DueSave ParallelModel::save_if_due(const std::filesystem::path& run, const Progress& progress, const SaveWhen& when) {
  if (when.steps < 0 || when.last_step < 0 || !(when.minutes >= 0)) {
    refuse_model("save_if_due",
                 fmt::format("got steps {}, minutes {} and last_step {}", when.steps, when.minutes, when.last_step),
                 "use numbers of at least 0");
  }
  const auto now = std::chrono::steady_clock::now();
  const auto since = state_->last_times.emplace(key_of_run(run), now).first->second;
  const bool is_late =
      when.minutes > 0 && std::chrono::duration<double, std::ratio<60>>(now - since).count() >= when.minutes;
  Communicator& world = state_->mesh.world();
  const at::Tensor all = at::tensor(
      std::vector<double>{stop_is_requested() ? 1.0 : 0.0, is_late && world.rank() == 0 ? 1.0 : 0.0}, at::kDouble);
  all_reduce_async(world, all, all, ReduceOp::sum, "save_if_due").wait();
  const bool stop = all[0].item<double>() > 0;
  const bool is_due = stop || all[1].item<double>() > 0 || (when.steps > 0 && progress.step % when.steps == 0) ||
                      (when.last_step > 0 && progress.step == when.last_step);
  const auto last = state_->last_steps.find(key_of_run(run));
  if (!is_due || (last != state_->last_steps.end() && last->second == progress.step)) return {.stop = stop};
  return {.saved = save(run, progress), .stop = stop};
}

}  // namespace caravan
