#include "caravan/engine/schedule.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

std::string text_of(const Action& action) {
  const std::string at = action.stage == 0 ? "" : fmt::format("@{}", action.stage);
  switch (action.kind) {
    case Action::Kind::forward: return fmt::format("F{}{}", action.micro_batch, at);
    case Action::Kind::backward: return fmt::format("B{}{}{}", action.micro_batch, at, action.pays ? "*" : "");
    case Action::Kind::reduce: return fmt::format("R{}", action.bucket);
    case Action::Kind::update: return "U";
  }
  return "?";
}

/// What has been done when the next action is checked.
struct Progress {
  std::vector<bool> forward;
  std::vector<bool> backward;
  int num_backwards = 0;
  int num_reduced = 0;
  bool paid = false;
  bool updated = false;
};

/// The rule that `action` breaks, or "".
std::string broken_rule(const Action& action, Progress& done, int num_buckets) {
  const int n = static_cast<int>(done.forward.size());
  if (done.updated) return "comes after the update";
  switch (action.kind) {
    case Action::Kind::forward:
      if (action.micro_batch < 0 || action.micro_batch >= n)
        return fmt::format("names a micro-batch outside 0..{}", n - 1);
      if (done.forward[action.micro_batch]) return "is there twice";
      done.forward[action.micro_batch] = true;
      return "";
    case Action::Kind::backward:
      if (action.micro_batch < 0 || action.micro_batch >= n)
        return fmt::format("names a micro-batch outside 0..{}", n - 1);
      if (!done.forward[action.micro_batch]) return "comes before its forward";
      if (done.backward[action.micro_batch]) return "is there twice";
      done.backward[action.micro_batch] = true;
      if (action.pays != (++done.num_backwards == n)) return "pays, or does not, but exactly the last backward must";
      done.paid = action.pays;
      return "";
    case Action::Kind::reduce:
      if (!done.paid) return "comes before the last backward";
      if (action.bucket != done.num_reduced || action.bucket >= num_buckets) {
        return fmt::format("is out of order: bucket {} of {} is next", done.num_reduced, num_buckets);
      }
      ++done.num_reduced;
      return "";
    case Action::Kind::update:
      if (done.num_backwards != n || done.num_reduced != num_buckets) {
        return fmt::format("comes after {} of {} backwards and {} of {} buckets", done.num_backwards, n,
                           done.num_reduced, num_buckets);
      }
      done.updated = true;
      return "";
  }
  return "is of no known kind";
}

}  // namespace

std::string Schedule::to_string() const {
  std::string line;
  for (const Action& action : actions) line += (line.empty() ? "" : " ") + text_of(action);
  return line;
}

void Schedule::validate(int num_micro_batches, int num_buckets) const {
  Progress done;
  done.forward.assign(num_micro_batches, false);
  done.backward.assign(num_micro_batches, false);
  for (size_t i = 0; i < actions.size(); ++i) {
    const std::string broken = broken_rule(actions[i], done, num_buckets);
    if (!broken.empty()) {
      throw UsageError({"schedule", fmt::format("action {} ({})", i, text_of(actions[i])), broken, to_string(), ""});
    }
  }
  if (!done.updated) throw UsageError({"schedule", "", "does not end with an update", to_string(), ""});
}

Schedule accumulate(int num_micro_batches, int num_buckets) {
  if (num_micro_batches < 1) {
    throw UsageError(
        {"schedule", "accumulate", fmt::format("{} micro-batches", num_micro_batches), "", "use 1 or more"});
  }
  Schedule schedule;
  for (int m = 0; m < num_micro_batches; ++m) {
    schedule.actions.push_back({.kind = Action::Kind::forward, .micro_batch = m});
    schedule.actions.push_back({.kind = Action::Kind::backward, .micro_batch = m, .pays = m + 1 == num_micro_batches});
  }
  for (int b = 0; b < num_buckets; ++b) schedule.actions.push_back({.kind = Action::Kind::reduce, .bucket = b});
  schedule.actions.push_back({.kind = Action::Kind::update});
  return schedule;
}

}  // namespace caravan
