#include "caravan/schedule/pipeline.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using enum Pass::Kind;

class Simulation {
 public:
  Simulation(const PipelineOrder& order, const std::vector<StageCost>& stages) : order_(order), stages_(stages) {
    for (const PassOrder& passes : order.ranks) {
      for (const Pass& pass : passes) num_micro_batches_ = std::max(num_micro_batches_, pass.micro_batch + 1);
    }
    const size_t count = static_cast<size_t>(order.num_stages()) * static_cast<size_t>(num_micro_batches_);
    has_weight_.resize(count);
    for (std::vector<double>* ends : {&forward_ends_, &backward_ends_}) ends->resize(count, kNever);
    for (const PassOrder& passes : order.ranks) {
      for (const Pass& pass : passes) {
        if (pass.kind == weight) has_weight_[number_of(pass.stage, pass.micro_batch)] = true;
      }
    }
    timeline_.ranks.resize(order.ranks.size());
  }

  Timeline run() {
    std::vector<size_t> next(order_.ranks.size(), 0);
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < next.size(); ++rank) {
        while (next[rank] < order_.ranks[rank].size() && try_pass(rank, order_.ranks[rank][next[rank]])) {
          ++next[rank];
          moves = true;
        }
      }
    }
    for (size_t rank = 0; rank < next.size(); ++rank) {
      if (next[rank] < order_.ranks[rank].size()) {
        throw UsageError(
            {.op = "pipeline", .subject = "schedule", .fact = "waits forever", .action = "check() names the cycle"});
      }
    }
    return std::move(timeline_);
  }

 private:
  static constexpr double kNever = -1;

  /// Of a stage's pass of a micro-batch: orders have many passes.
  size_t number_of(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(num_micro_batches_) + static_cast<size_t>(micro_batch);
  }
  int rank_of(int stage) const { return order_.rank_of_stage[static_cast<size_t>(stage)]; }
  bool is_stage(int stage) const { return stage >= 0 && stage < order_.num_stages(); }

  double duration(const Pass& pass) const {
    const StageCost& cost = stages_[static_cast<size_t>(pass.stage)];
    switch (pass.kind) {
      case forward: return cost.forward;
      case recompute: return cost.recompute;
      case weight: return cost.weight;
      case backward: return cost.backward + (has_weight_[number_of(pass.stage, pass.micro_batch)] ? 0 : cost.weight);
      case update: return 0;
    }
    return 0;
  }

  /// When the input of the pass from another stage is available; nothing if that stage has not run.
  std::optional<double> input_of(const Pass& pass) const {
    const int from = pass.kind == forward ? pass.stage - 1 : pass.kind == backward ? pass.stage + 1 : -1;
    if (!is_stage(from)) return 0;
    const double end = (pass.kind == forward ? forward_ends_ : backward_ends_)[number_of(from, pass.micro_batch)];
    if (end == kNever) return std::nullopt;
    const bool crosses = rank_of(from) != rank_of(pass.stage);
    return end + (crosses ? stages_[static_cast<size_t>(std::min(from, pass.stage))].send : 0);
  }

  bool try_pass(size_t rank, const Pass& pass) {
    const std::optional<double> input = input_of(pass);
    if (!input) return false;
    Timeline::Rank& own = timeline_.ranks[rank];
    const double begin = std::max(*input, own.spans.empty() ? 0 : own.spans.back().end);
    const double end = begin + duration(pass);
    if (pass.kind != update) own.spans.push_back({pass, begin, end});
    own.busy += end - begin;
    if (pass.kind == forward) forward_ends_[number_of(pass.stage, pass.micro_batch)] = end;
    if (pass.kind == backward) backward_ends_[number_of(pass.stage, pass.micro_batch)] = end;
    timeline_.total = std::max(timeline_.total, end);
    const int to = pass.kind == forward ? pass.stage + 1 : pass.kind == backward ? pass.stage - 1 : -1;
    if (is_stage(to) && rank_of(to) != rank_of(pass.stage)) ++own.num_sent;
    return true;
  }

  const PipelineOrder& order_;
  const std::vector<StageCost>& stages_;
  int num_micro_batches_ = 0;
  std::vector<bool> has_weight_;  ///< by number_of
  std::vector<double> forward_ends_, backward_ends_;
  Timeline timeline_;
};

}  // namespace

double Timeline::bubble() const {
  double sum = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) sum += bubble(rank);
  return sum / static_cast<double>(ranks.size());
}

Timeline simulate(const PipelineOrder& order, const std::vector<StageCost>& stages) {
  return Simulation(order, stages).run();
}

}  // namespace caravan
