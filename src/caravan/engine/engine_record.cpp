#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/engine/agreement.h"
#include "caravan/engine/engine.h"

namespace caravan {

bool Engine::begin_join_step(bool has_batch, int num_micro_batches) {
  const Attendance attendance = agree_on_attendance(strategy_, mesh_, has_batch, num_micro_batches);
  if (attendance.num_here == 0) return false;
  begin_step(attendance.num_micro_batches);
  attendance_ = attendance;
  if (!holds_all()) return true;
  // A rank that runs no unit cannot know when the others gather, so all ranks gather now.
  const auto num_groups = static_cast<int>(state_.layout.units().groups.size());
  for (int group = 0; group < num_groups; ++group) {
    if (!unsharded_->is_gathered(group)) continue;
    unsharded_->gather(group);
    unsharded_->wait(group);
  }
  return true;
}

void Engine::check_present() const {
  if (attendance_.is_here) return;
  throw UsageError({strategy_.name, "begin_join_step", "a unit runs on a rank that announced no batch", mesh_.where(),
                    "run it with Phase::evaluate, or announce the batch"});
}

void Engine::finish_recording() {
  const Units& units = state_.layout.units();
  Schedule schedule;
  if (strategy_.static_graph) {  // before any rank waits for a reduction
    if (!attendance_.is_full()) recorder_.share(mesh_.world(), attendance_);
    schedule = agreed_recording(recorder_.events(), num_micro_batches_, units, strategy_, mesh_);
    const int found = recorder_.num_backwards();
    if (found < num_micro_batches_) {
      mode_ = Mode::idle;
      throw UsageError({strategy_.name, "finish_step",
                        fmt::format("{} backward passes, but begin_step announced {}", found, num_micro_batches_),
                        mesh_.where(), "give begin_step the number of backward passes of the step"});
    }
  }
  // In the order of the buckets, equal on every rank, so that neighbouring reductions are combined.
  std::vector<bool> is_reduced(units.groups.size(), false);
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (is_reduced[static_cast<size_t>(bucket.group)]) continue;
    is_reduced[static_cast<size_t>(bucket.group)] = true;
    gradients_->reduce(bucket.group);
  }
  free_all();
  if (strategy_.static_graph) recorded_[num_micro_batches_] = std::move(schedule);
}

/// A parameter counts as used if any rank has used it.
void Engine::agree_on_used() {
  if (strategy_.find_unused_parameters) return;
  std::vector<int64_t> used = gradients_->used();
  take_maxima(mesh_.world(), used, "used parameters");
  gradients_->set_used(used);
}

/// The table without its events. Waits are at the same positions as on the other ranks: they start transfers.
void Engine::follow_absent() {
  for (perform_until_event(); !cursor_.is_at_end(); perform_until_event()) {
    const int unit = cursor_.entry().unit;
    for (const int group : state_.layout.units().units[static_cast<size_t>(unit)].groups) unsharded_->wait(group);
    cursor_.advance();
  }
}

}  // namespace caravan
