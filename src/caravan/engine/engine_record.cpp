#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/agree.h"
#include "caravan/engine/agreement.h"
#include "caravan/engine/engine.h"

namespace caravan {
namespace {

/// Kind, unit and micro-batch of each event, as bytes.
std::string to_bytes(const Schedule& events) {
  std::string bytes;
  for (const Action& event : events) {
    const std::array<int, 3> numbers{static_cast<int>(event.kind), event.unit, event.micro_batch};
    bytes.append(reinterpret_cast<const char*>(numbers.data()), sizeof(numbers));
  }
  return bytes;
}

Schedule to_events(const std::string& bytes) {
  Schedule events;
  std::array<int, 3> numbers{};
  for (size_t at = 0; at < bytes.size(); at += sizeof(numbers)) {
    std::memcpy(numbers.data(), bytes.data() + at, sizeof(numbers));
    events.push_back({.kind = static_cast<Action::Kind>(numbers[0]), .unit = numbers[1], .micro_batch = numbers[2]});
  }
  return events;
}

}  // namespace

bool Engine::begin_joint_step(bool has_batch, int num_micro_batches) {
  const Attendance attendance = agree_on_attendance(strategy_, mesh_, has_batch, num_micro_batches);
  if (attendance.num_here == 0) return false;
  begin_step(attendance.num_micro_batches);
  attendance_ = attendance;
  if (!holds_all()) return true;
  // A rank that runs no unit cannot know when the others gather: all do so now.
  const auto num_groups = static_cast<int>(state_.layout.units().groups.size());
  for (int group = 0; group < num_groups; ++group) {
    if (!leaves_->is_gathered(group)) continue;
    leaves_->gather(group);
    leaves_->wait(group);
  }
  return true;
}

void Engine::check_present() const {
  if (attendance_.is_here) return;
  throw UsageError({strategy_.name, "begin_joint_step", "a unit runs on a rank that announced no batch", mesh_.where(),
                    "run it with Phase::evaluate, or announce the batch"});
}

void Engine::finish_recording() {
  const Units& units = state_.layout.units();
  Schedule schedule;
  if (strategy_.is_static) {  // before any rank waits for a reduction
    if (!attendance_.is_full()) agree_on_events();
    schedule = agreed_recording(recording_, num_micro_batches_, units, strategy_, mesh_);
    std::vector<int> num_backwards(strategy_.units.size(), 0);
    for (const Action& event : recording_) {
      if (event.kind == Action::Kind::backward) ++num_backwards[static_cast<size_t>(event.unit)];
    }
    const int found = *std::max_element(num_backwards.begin(), num_backwards.end());
    if (found < num_micro_batches_) {
      mode_ = Mode::idle;
      throw UsageError({strategy_.name, "finish_step",
                        fmt::format("{} backward passes, but begin_step announced {}", found, num_micro_batches_),
                        mesh_.where(), "give begin_step the number of backward passes of the step"});
    }
  }
  // In the order of the buckets, alike on every rank, so that neighbours go out together.
  std::vector<bool> is_reduced(units.groups.size(), false);
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (is_reduced[static_cast<size_t>(bucket.group)]) continue;
    is_reduced[static_cast<size_t>(bucket.group)] = true;
    gradients_->reduce(bucket.group);
  }
  free_all();
  if (strategy_.is_static) recorded_[num_micro_batches_] = std::move(schedule);
}

/// Ranks without a batch have recorded nothing: they take over what the first rank with one has.
void Engine::agree_on_events() {
  const std::string events = broadcast_text(mesh_.world(), to_bytes(recording_), attendance_.first_rank, "events");
  if (!attendance_.is_here) recording_ = to_events(events);
}

/// A parameter counts as used if any rank has used it.
void Engine::agree_on_used() {
  if (strategy_.allow_unused) return;
  std::vector<int64_t> used = gradients_->used();
  take_maxima(mesh_.world(), used, "used parameters");
  gradients_->set_used(used);
}

/// The table without its events. Waits stand where they do on the other ranks: they start transfers.
void Engine::follow_absent() {
  for (; position_ < table_->size(); ++position_) {
    const Action& entry = (*table_)[position_];
    if (!is_reached(entry)) {
      perform(entry);
      continue;
    }
    for (const int group : state_.layout.units().units[static_cast<size_t>(entry.unit)].groups) leaves_->wait(group);
  }
}

}  // namespace caravan
