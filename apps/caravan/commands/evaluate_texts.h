#pragma once

#include <cstdint>
#include <vector>

#include "apps/caravan/options/options.h"
#include "caravan/comm/calls/same.h"
#include "caravan/formats/huggingface/load_model.h"

namespace caravan::app {

/// Rank 0's line on a terminal, which the result replaces.
class RoundCounter {
 public:
  explicit RoundCounter(const Communicator& world);
  ~RoundCounter();
  RoundCounter(const RoundCounter&) = delete;
  RoundCounter& operator=(const RoundCounter&) = delete;
  void show(int64_t done, int64_t total) const;

 private:
  bool shows_;
};

/// --context, or the model's. Throws UsageError for more than that.
int64_t evaluated_context(const EvaluateArguments& arguments, const ModelConfig& config);

/// That all ranks evaluate the same: the newest checkpoint of a run in progress may differ between them.
void check_same_evaluation(Communicator& world, const LoadedModel& loaded, std::vector<SharedFact> facts);

/// Loss, and what else the task of the texts has, as training validates them.
void evaluate_texts(const EvaluateArguments& arguments, LoadedModel& loaded, Communicator& world);

}  // namespace caravan::app
