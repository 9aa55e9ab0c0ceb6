#include "caravan/schedule/order_writer.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

using enum Pass::Kind;

void check_sizes(const char* name, int num_ranks, int num_micro_batches) {
  if (num_ranks >= 1 && num_micro_batches >= 1) return;
  throw UsageError({.op = "pipeline",
                    .subject = name,
                    .fact = fmt::format("{} ranks, {} micro-batches", num_ranks, num_micro_batches),
                    .action = "use 1 or more of both"});
}

std::vector<int> in_turn(int num_ranks, int num_stages) {
  std::vector<int> ranks;
  for (int stage = 0; stage < num_stages; ++stage) ranks.push_back(stage % num_ranks);
  return ranks;
}

PipelineOrder order_by_stage(const char* name, const PipelineChoice& choice, int num_micro_batches,
                             const std::function<PassOrder(int stage)>& order_of) {
  const auto num_ranks = static_cast<int>(choice.degree);
  check_sizes(name, num_ranks, num_micro_batches);
  PipelineOrder result{{}, in_turn(num_ranks, num_ranks)};
  for (int stage = 0; stage < num_ranks; ++stage) result.ranks.push_back(order_of(stage));
  return result;
}

PipelineOrder one_forward_one_backward(const PipelineChoice& choice, int num_micro_batches) {
  return order_by_stage("1f1b", choice, num_micro_batches, [&](int stage) {
    OrderWriter writer(num_micro_batches);
    for (int i = 0; i < choice.degree - 1 - stage; ++i) writer.add(forward, stage);
    while (!writer.is_complete(backward, stage)) {
      writer.add(forward, stage);
      writer.add(backward, stage);
    }
    return writer.order();
  });
}

PipelineOrder zero_bubble(const char* name, const PipelineChoice& choice, int num_micro_batches, int ahead) {
  return order_by_stage(name, choice, num_micro_batches, [&](int stage) {
    OrderWriter writer(num_micro_batches);
    for (int i = 0; i < ahead * (choice.degree - 1 - stage); ++i) writer.add(forward, stage);
    for (int m = 0; m < num_micro_batches; ++m) {
      writer.add(forward, stage);
      writer.add(backward, stage);
      if (m >= ahead * stage) writer.add(weight, stage);
    }
    while (!writer.is_complete(weight, stage)) writer.add(weight, stage);
    return writer.order();
  });
}

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

}  // namespace caravan
