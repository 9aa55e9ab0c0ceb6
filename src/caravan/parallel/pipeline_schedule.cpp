#include "caravan/parallel/pipeline_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/parallel/pipeline_file.h"

namespace caravan {
namespace {

using enum Pass::Kind;

void check_sizes(const char* name, int num_ranks, int num_micro_batches) {
  if (num_ranks >= 1 && num_micro_batches >= 1) return;
  throw UsageError({.op = "pipeline",
                    .subject = name,
                    .fact = fmt::format("{} ranks, {} micro-batches", num_ranks, num_micro_batches),
                    .action = "use 1 or more of both"});
}

/// Stage s is on rank s % num_ranks.
std::vector<int> in_turn(int num_ranks, int num_stages) {
  std::vector<int> ranks;
  for (int stage = 0; stage < num_stages; ++stage) ranks.push_back(stage % num_ranks);
  return ranks;
}

/// Writes the order of one rank; each kind of pass of a stage takes the micro-batches in turn.
class OrderWriter {
 public:
  explicit OrderWriter(int num_micro_batches) : num_micro_batches_(num_micro_batches) {}
  /// The next micro-batch of that stage, if one is left; a W only if its B is there.
  void add(Pass::Kind kind, int stage) {
    int& next = next_[{kind, stage}];
    if (next >= num_micro_batches_ || (kind == weight && next >= done(backward, stage))) return;
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

/// 1F1B with `ahead` more forwards before the first backward for each stage that follows, and W's that wait for as many
/// more backwards for each stage before: every stage then holds ahead (p-1) + 1 micro-batches.
PipelineOrder zero_bubble(int num_ranks, int num_micro_batches, int ahead) {
  PipelineOrder result{{}, in_turn(num_ranks, num_ranks)};
  for (int stage = 0; stage < num_ranks; ++stage) {
    OrderWriter writer(num_micro_batches);
    for (int i = 0; i < ahead * (num_ranks - 1 - stage); ++i) writer.add(forward, stage);
    for (int m = 0; m < num_micro_batches; ++m) {
      writer.add(forward, stage);
      writer.add(backward, stage);
      if (m >= ahead * stage) writer.add(weight, stage);
    }
    while (!writer.is_complete(weight, stage)) writer.add(weight, stage);
    result.ranks.push_back(writer.order());
  }
  return result;
}

/// `updates_every`: an update follows the last backward of so many micro-batches.
PipelineOrder with_updates(PipelineOrder order, int updates_every) {
  for (PassOrder& passes : order.ranks) {
    PassOrder all;
    for (const Pass& pass : passes) {
      all.push_back(pass);
      const bool ends_batch = (pass.micro_batch + 1) % updates_every == 0;
      if (pass.kind == backward && ends_batch) all.push_back({update, pass.micro_batch, pass.stage});
    }
    passes = std::move(all);
  }
  return order;
}

}  // namespace

PipelineOrder naive(int num_ranks, int num_micro_batches) {
  check_sizes("naive", num_ranks, num_micro_batches);
  PipelineOrder result{{}, in_turn(num_ranks, num_ranks)};
  for (int stage = 0; stage < num_ranks; ++stage) result.ranks.push_back(accumulate(num_micro_batches, stage));
  return result;
}

PipelineOrder gpipe(int num_ranks, int num_micro_batches) {
  check_sizes("gpipe", num_ranks, num_micro_batches);
  PipelineOrder result{{}, in_turn(num_ranks, num_ranks)};
  for (int stage = 0; stage < num_ranks; ++stage) {
    PassOrder order = forward_only(num_micro_batches, stage);
    for (int m = 0; m < num_micro_batches; ++m) order.push_back({backward, m, stage});
    result.ranks.push_back(std::move(order));
  }
  return result;
}

PipelineOrder one_f_one_b(int num_ranks, int num_micro_batches) {
  check_sizes("1f1b", num_ranks, num_micro_batches);
  PipelineOrder result{{}, in_turn(num_ranks, num_ranks)};
  for (int stage = 0; stage < num_ranks; ++stage) {
    OrderWriter writer(num_micro_batches);
    for (int i = 0; i < num_ranks - 1 - stage; ++i) writer.add(forward, stage);
    while (!writer.is_complete(backward, stage)) {
      writer.add(forward, stage);
      writer.add(backward, stage);
    }
    result.ranks.push_back(writer.order());
  }
  return result;
}

PipelineOrder interleaved(int num_ranks, int num_micro_batches, int stages_per_rank) {
  check_sizes("interleaved", num_ranks, num_micro_batches);
  if (stages_per_rank < 1) {
    throw UsageError({.op = "pipeline",
                      .subject = "interleaved",
                      .fact = fmt::format("{} stages a rank", stages_per_rank),
                      .action = "use 1 or more"});
  }
  if (num_micro_batches % num_ranks != 0) {
    const int nearest_groups = std::max((num_micro_batches + num_ranks / 2) / num_ranks, 1);
    throw UsageError(
        {.op = "pipeline",
         .subject = "interleaved",
         .fact = fmt::format("{} micro-batches are not a multiple of {} ranks", num_micro_batches, num_ranks),
         .action = fmt::format("use {}", nearest_groups * num_ranks)});
  }
  const int total = num_micro_batches * stages_per_rank;
  const int group = num_ranks * stages_per_rank;
  PipelineOrder result{{}, in_turn(num_ranks, group)};
  for (int rank = 0; rank < num_ranks; ++rank) {
    // The i-th forward, and the i-th backward, which takes the stages in reverse.
    const auto pass = [&](Pass::Kind kind, int i) {
      const int turn = i % group / num_ranks;
      const int chunk = kind == forward ? turn : stages_per_rank - 1 - turn;
      return Pass{kind, i / group * num_ranks + i % num_ranks, chunk * num_ranks + rank};
    };
    const int warm_up = std::min(total, 2 * (num_ranks - 1 - rank) + (stages_per_rank - 1) * num_ranks);
    PassOrder order;
    for (int i = 0; i < total + warm_up; ++i) {
      if (i < total) order.push_back(pass(forward, i));
      if (i >= warm_up) order.push_back(pass(backward, i - warm_up));
    }
    result.ranks.push_back(std::move(order));
  }
  return result;
}

PipelineOrder zero_bubble_h1(int num_ranks, int num_micro_batches) {
  check_sizes("zb-h1", num_ranks, num_micro_batches);
  return zero_bubble(num_ranks, num_micro_batches, 1);
}

PipelineOrder zero_bubble_h2(int num_ranks, int num_micro_batches) {
  check_sizes("zb-h2", num_ranks, num_micro_batches);
  return zero_bubble(num_ranks, num_micro_batches, 2);
}

PipelineOrder zero_bubble_v(int num_ranks, int num_micro_batches) {
  check_sizes("zb-v", num_ranks, num_micro_batches);
  PipelineOrder result;
  for (int stage = 0; stage < 2 * num_ranks; ++stage) {
    result.rank_of_stage.push_back(std::min(stage, 2 * num_ranks - 1 - stage));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int down = rank;                    // towards the turn of the V
    const int up = 2 * num_ranks - 1 - rank;  // and back
    OrderWriter writer(num_micro_batches);
    const auto add_all = [&](int stage) {
      for (const Pass::Kind kind : {forward, backward, weight}) writer.add(kind, stage);
    };
    for (int i = 0; i < 2 * (num_ranks - rank) - 1; ++i) writer.add(forward, down);
    for (int i = 0; i < rank; ++i) {
      writer.add(forward, up);
      writer.add(forward, down);
    }
    for (int i = 0; i < num_ranks - rank; ++i) add_all(up);
    while (!writer.is_complete(forward, up)) {
      add_all(down);
      add_all(up);
    }
    for (int i = 0; i < rank; ++i) {
      writer.add(backward, down);
      writer.add(backward, up);
    }
    while (!writer.is_complete(backward, down) || !writer.is_complete(backward, up)) {
      writer.add(backward, down);
      writer.add(weight, down);
      writer.add(backward, up);
    }
    for (const int stage : {up, down}) {
      while (!writer.is_complete(weight, stage)) writer.add(weight, stage);
    }
    result.ranks.push_back(writer.order());
  }
  return result;
}

PipelineOrder pipedream(int num_ranks, int num_micro_batches) {
  return with_updates(one_f_one_b(num_ranks, num_micro_batches), 1);
}

PipelineOrder pipedream_2bw(int num_ranks, int num_micro_batches, int num_batches) {
  if (num_micro_batches < num_ranks || num_batches < 1) {
    throw UsageError(
        {.op = "pipeline",
         .subject = "pipedream-2bw",
         .fact = fmt::format("{} batches of {} micro-batches for {} ranks", num_batches, num_micro_batches, num_ranks),
         .action = "use at least one batch, of as many micro-batches as there are ranks"});
  }
  return with_updates(one_f_one_b(num_ranks, num_micro_batches * num_batches), num_micro_batches);
}

namespace {

PipelineOrder named_order(const PipelineChoice& choice, int num_micro_batches) {
  const auto p = static_cast<int>(choice.degree);
  const int m = num_micro_batches;
  if (choice.is_file()) return parse_pipeline_table(choice.table, choice.schedule);
  if (choice.schedule == "naive") return naive(p, m);
  if (choice.schedule == "gpipe") return gpipe(p, m);
  if (choice.schedule == "1f1b") return one_f_one_b(p, m);
  if (choice.schedule == "interleaved") return interleaved(p, m, static_cast<int>(choice.chunks()));
  if (choice.schedule == "zb-h1") return zero_bubble_h1(p, m);
  if (choice.schedule == "zb-h2") return zero_bubble_h2(p, m);
  if (choice.schedule == "zb-v") return zero_bubble_v(p, m);
  if (choice.schedule == "pipedream") return pipedream(p, m);
  if (choice.schedule == "pipedream-2bw") {
    const int of_batch = choice.micro_batches > 0 ? static_cast<int>(choice.micro_batches) : m;
    return pipedream_2bw(p, of_batch, std::max(1, m / of_batch));
  }
  throw UsageError({.op = "pipeline",
                    .subject = "schedule",
                    .fact = "'" + choice.schedule + "' is not one of " + join(pipeline_schedules()),
                    .action = "use '" + nearest(choice.schedule, pipeline_schedules()) + "'"});
}

}  // namespace

PipelineOrder pipeline_order(const PipelineChoice& choice, int num_micro_batches, bool recompute) {
  PipelineOrder order = named_order(choice, num_micro_batches);
  return recompute ? with_recompute(std::move(order)) : order;
}

std::vector<int> ranks_of_stages(const PipelineChoice& choice) {
  // Every schedule has a table for as many micro-batches as ranks.
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
