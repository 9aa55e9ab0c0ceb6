#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {

// Helpers that write schedules.

/// Throws UsageError unless both are 1 or more.
void check_sizes(const char* name, int num_ranks, int num_micro_batches);
/// Assigns stage s to rank s % num_ranks.
std::vector<int> in_turn(int num_ranks, int num_stages);

/// Writes the order of one rank; each kind of pass of a stage takes the micro-batches in order.
class OrderWriter {
 public:
  explicit OrderWriter(int num_micro_batches) : num_micro_batches_(num_micro_batches) {}
  /// Adds the pass for the next micro-batch of that stage, if one is left; a W only if its B is there.
  void add(Pass::Kind kind, int stage) {
    int& next = next_[{kind, stage}];
    if (next >= num_micro_batches_ || (kind == Pass::Kind::weight && next >= done(Pass::Kind::backward, stage))) return;
    order_.push_back({kind, next++, stage});
  }
  int done(Pass::Kind kind, int stage) const {
    const auto found = next_.find({kind, stage});
    return found == next_.end() ? 0 : found->second;
  }
  bool is_complete(Pass::Kind kind, int stage) const { return done(kind, stage) == num_micro_batches_; }
  PassOrder order() { return std::move(order_); }

 private:
  int num_micro_batches_;
  std::map<std::pair<Pass::Kind, int>, int> next_;
  PassOrder order_;
};

/// Each rank has one stage, whose passes `order_of` returns. Throws as check_sizes; `name` is the name of the schedule.
PipelineOrder order_by_stage(const char* name, const PipelineChoice& choice, int num_micro_batches,
                             const std::function<PassOrder(int stage)>& order_of);

/// A backward as soon as its gradient has arrived, and a forward in between.
PipelineOrder one_forward_one_backward(const PipelineChoice& choice, int num_micro_batches);
/// 1F1B with `ahead` more forwards before the first backward for each following stage, and W's delayed by as many more
/// backwards for each preceding stage, so that every stage holds ahead (p-1) + 1 micro-batches.
PipelineOrder zero_bubble(const char* name, const PipelineChoice& choice, int num_micro_batches, int ahead);
/// Adds an update of the stage after the last backward of each `updates_every` micro-batches.
PipelineOrder with_updates(PipelineOrder order, int updates_every);

}  // namespace caravan
