#include "caravan/cost/published/pipeline_time.h"

#include <algorithm>

#include "caravan/registry/registry.h"
#include "caravan/schedule/order_writer.h"

namespace caravan::published {
namespace {

constexpr int64_t kMostPasses = 200'000;  // that are simulated; 64 ranks take 57,344, 8 of 105 stages 67,200

PipelineOrder order_of(const PipelineShape& shape, int64_t micro_batches) {
  PipelineChoice choice;
  choice.degree = shape.ranks;
  const auto count = static_cast<int>(micro_batches);
  if (find_entry("pipeline", shape.schedule) == nullptr) return one_forward_one_backward(choice, count);
  choice.schedule = Setting("pipeline", shape.schedule);
  if (shape.chunks > 1) choice.schedule.set("stages_per_rank", shape.chunks);
  return pipeline_order(choice, count);
}

PipelineTime simulated(const PipelineShape& shape, int64_t micro_batches, const std::vector<StageCost>& stages) {
  const PipelineOrder order = order_of(shape, micro_batches);
  PipelineTime time{.seconds = simulate(order, stages).total};
  for (const HeldActivations& held : held_activations(order))
    time.held.push_back(static_cast<double>(held.activations));
  return time;
}

double seconds_of(const StageCost& cost) { return cost.forward + cost.backward + cost.weight; }

/// By rank, of one micro-batch.
std::vector<double> seconds_of_ranks(const PipelineShape& shape, const std::vector<StageCost>& stages) {
  std::vector<double> seconds(static_cast<size_t>(shape.ranks), 0);
  for (size_t stage = 0; stage < stages.size(); ++stage) seconds[stage % seconds.size()] += seconds_of(stages[stage]);
  return seconds;
}

/// A pipeline too large to simulate: the slowest rank is busy, but for the bubble of 1F1B, interleaved or not
/// (Narayanan et al., arXiv 2104.04473).
PipelineTime closed_form(const PipelineShape& shape, const std::vector<StageCost>& stages) {
  const std::vector<double> of_rank = seconds_of_ranks(shape, stages);
  const double slowest = *std::ranges::max_element(of_rank);
  double others = -slowest;
  for (const double seconds : of_rank) others += seconds;
  for (const StageCost& cost : stages) others += 2 * cost.send;
  const auto chunks = static_cast<double>(shape.chunks);
  PipelineTime time{.seconds = static_cast<double>(shape.micro_batches) * slowest + others / chunks};
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    const int64_t after = shape.ranks - 1 - rank;
    const int64_t held = shape.chunks == 1 ? after + 1 : 2 * after + (shape.chunks - 1) * shape.ranks + 1;
    time.held.push_back(static_cast<double>(std::min(held, shape.micro_batches * shape.chunks)));
  }
  return time;
}

}  // namespace

PipelineTime pipeline_time(const PipelineShape& shape, const std::vector<StageCost>& stages) {
  const int64_t p = shape.ranks;
  if (p == 1) {
    double seconds = 0;
    for (const StageCost& cost : stages) seconds += seconds_of(cost);
    return {.seconds = static_cast<double>(shape.micro_batches) * seconds, .held = {1}};
  }
  // Interleaved stages need whole rounds of p micro-batches; of others, a share of a round is left out again.
  const int64_t rest = shape.chunks > 1 ? shape.micro_batches % p : 0;
  const int64_t count = shape.micro_batches + (rest > 0 ? p - rest : 0);
  const int64_t first = (p <= 16 ? 4 : 3) * p, second = (p <= 16 ? 6 : 4) * p;
  const int64_t simulated_batches = count <= second + p ? count : first + second;
  if (2 * static_cast<int64_t>(stages.size()) * simulated_batches > kMostPasses) return closed_form(shape, stages);
  PipelineTime time;
  if (count <= second + p) {
    time = simulated(shape, count, stages);
  } else {
    const PipelineTime one = simulated(shape, first, stages), two = simulated(shape, second, stages);
    const double rounds = static_cast<double>(count - first) / static_cast<double>(second - first);
    time.seconds = one.seconds + (two.seconds - one.seconds) * rounds;
    for (size_t i = 0; i < one.held.size(); ++i)
      time.held.push_back(one.held[i] + (two.held[i] - one.held[i]) * rounds);
  }
  if (rest > 0) {
    const std::vector<double> of_rank = seconds_of_ranks(shape, stages);
    time.seconds -= static_cast<double>(p - rest) * *std::ranges::max_element(of_rank);
  }
  return time;
}

}  // namespace caravan::published
