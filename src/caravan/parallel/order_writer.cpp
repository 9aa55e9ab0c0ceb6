#include "caravan/parallel/order_writer.h"

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

PipelineOrder one_forward_one_backward(int num_ranks, int num_micro_batches) {
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
