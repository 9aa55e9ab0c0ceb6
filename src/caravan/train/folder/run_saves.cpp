#include "caravan/train/folder/run_saves.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/checkpoint/save_steps.h"
#include "caravan/module/finite.h"
#include "caravan/train/place.h"

namespace caravan {
namespace {

/// Adds the milliseconds of its lifetime.
class AddedMs {
 public:
  explicit AddedMs(double& sum) : sum_(sum) {}
  ~AddedMs() { sum_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count(); }
  AddedMs(const AddedMs&) = delete;
  AddedMs& operator=(const AddedMs&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

RunSaves::RunSaves(std::filesystem::path run, const Recipe& recipe, RunState& state, const TaskRows& rows,
                   Communicator& world, TrainObserver& observer)
    : run_(std::move(run)), recipe_(recipe), state_(state), rows_(rows), world_(world), observer_(observer) {
  if (recipe_.checkpoint.keep_best) best_.emplace(run_, world_);
  if (recipe_.checkpoint.async) background_ = std::make_unique<BackgroundSave>(world_);
}

double RunSaves::take_ms() { return std::exchange(save_ms_, 0); }

void RunSaves::mark_best() { mark_best(saved_step_); }

void RunSaves::mark_best(int64_t step) {
  on_rank_0(
      world_, [&] { best_->mark(step); }, "best checkpoint");
}

void RunSaves::save(bool is_best) {
  const AddedMs time(save_ms_);
  finish();
  state_.engine().catch_up();
  require_finite_state();
  saved_step_ = state_.step;
  if (background_) {
    background_->begin(run_, state_.info(rows_), state_.pieces());
    is_best_ = is_best;
  } else {
    published(state_.save(run_, recipe_.checkpoint.keep, rows_), is_best);
  }
}

void RunSaves::published(const SavedCheckpoint& saved, bool is_best) {
  observer_.saved(shown(saved.folder));
  if (!saved.warning.empty()) observer_.warned(saved.warning);
  if (is_best) mark_best(step_of(saved.folder));
  if (background_ && world_.rank() == 0) background_->prune(run_, recipe_.checkpoint.keep);
}

void RunSaves::finish() {
  if (background_ && background_->is_running()) published(background_->finish(), is_best_);
}

void RunSaves::poll() {
  if (!background_ || !background_->is_running()) return;
  const AddedMs time(save_ms_);
  if (const auto saved = background_->poll()) published(*saved, is_best_);
}

void RunSaves::require_finite_state() {
  const at::NoGradGuard no_grad;
  const std::vector<CheckpointPiece> pieces = state_.pieces();
  const std::vector<const CheckpointPiece*> mine = my_share(pieces);
  const auto bad = std::ranges::find_if(
      mine, [](const CheckpointPiece* piece) { return !all_finite(piece->read ? piece->read() : piece->tensor); });
  int64_t is_bad = bad == mine.end() ? 0 : 1;
  take_maxima(world_, {&is_bad, 1}, "finite state");
  if (is_bad == 0) return;
  const auto names = gather_texts(world_, bad == mine.end() ? "" : (*bad)->name, "finite state");
  const auto first = std::ranges::find_if(names, [](const std::string& name) { return !name.empty(); });
  refuse(*first, fmt::format("is not finite after step {}", state_.step));
}

void RunSaves::require_finite(double validation_loss) {
  if (std::isfinite(validation_loss)) return;
  refuse("validation loss",
         fmt::format("is not finite after step {} ({})", state_.step, std::isnan(validation_loss) ? "nan" : "inf"));
}

void RunSaves::refuse(const std::string& subject, const std::string& fact) {
  finish();
  const bool has_saved = saved_step_ >= 0;
  std::string where = "this state is not saved, and there is no checkpoint";
  if (has_saved) where = "this state is not saved; the newest checkpoint is " + checkpoint_name(saved_step_);
  if (saved_step_ == state_.step)
    where = checkpoint_name(saved_step_) + " is of this state, saved before its evaluation";
  throw NumericsError(
      {"train", subject, fact, where,
       std::string("lower optimizer.lr, lengthen optimizer.warmup_steps or set optimizer.clip_norm, and ") +
           (has_saved ? "resume from an earlier checkpoint" : "start again")});
}

}  // namespace caravan
