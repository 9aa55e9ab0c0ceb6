#include "caravan/schedule/pipeline_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_file.h"

namespace caravan {
#define CARAVAN_SCHEDULE(name) PipelineSchedule name##_schedule();
#include "caravan/registry/entries.def"

using enum Pass::Kind;

const PipelineSchedule& schedule_of(const PipelineChoice& choice) {
  static const std::map<std::string, PipelineSchedule> schedules{
#define CARAVAN_SCHEDULE(name) {#name, name##_schedule()},
#include "caravan/registry/entries.def"
  };
  static const PipelineSchedule of_a_file{.most_stages = kAnyStages};
  return choice.is_file() ? of_a_file : schedules.at(choice.schedule.entry().body);
}

PipelineOrder pipeline_order(const PipelineChoice& choice, int num_micro_batches, bool recompute) {
  PipelineOrder order = choice.is_file() ? parse_pipeline_table(choice.table, choice.file)
                                         : schedule_of(choice).order(choice, num_micro_batches);
  return recompute ? with_recompute(std::move(order)) : order;
}

std::vector<int> ranks_of_stages(const PipelineChoice& choice) {
  // Every schedule has a table with as many micro-batches as ranks.
  return pipeline_order(choice, static_cast<int>(choice.degree)).rank_of_stage;
}

PipelineOrder with_recompute(PipelineOrder order) {
  for (PassOrder& passes : order.ranks) {
    PassOrder all;
    for (const Pass& pass : passes) {
      const Pass its_forward{forward, pass.micro_batch, pass.stage};
      const bool follows = !all.empty() && all.back() == its_forward;
      if (pass.kind == backward && !follows) all.push_back({recompute, pass.micro_batch, pass.stage});
      all.push_back(pass);
    }
    passes = std::move(all);
  }
  return order;
}

std::vector<HeldActivations> held_activations(const PipelineOrder& order) {
  std::vector<HeldActivations> result;
  for (const PassOrder& passes : order.ranks) {
    std::set<std::pair<int, int>> recomputed, deferred;  // stage and micro-batch
    for (const Pass& pass : passes) {
      if (pass.kind == recompute) recomputed.emplace(pass.stage, pass.micro_batch);
      if (pass.kind == weight) deferred.emplace(pass.stage, pass.micro_batch);
    }
    HeldActivations now, most;
    for (const Pass& pass : passes) {
      const std::pair key{pass.stage, pass.micro_batch};
      if (pass.kind == forward) ++(recomputed.contains(key) ? now.inputs : now.activations);
      if (pass.kind == recompute) ++now.activations;
      most = {std::max(most.activations, now.activations), std::max(most.inputs, now.inputs)};
      if (pass.kind == backward && recomputed.contains(key)) --now.inputs;
      const bool releases = pass.kind == weight || (pass.kind == backward && !deferred.contains(key));
      if (releases) --now.activations;
    }
    result.push_back(most);
  }
  return result;
}

}  // namespace caravan
