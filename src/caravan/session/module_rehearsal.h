#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "caravan/session/trials.h"

namespace caravan {

/// Keeps the tensors of a module, whose memory stays where it is, while the module has others without values.
class KeptTensors {
 public:
  explicit KeptTensors(torch::nn::Module& net);
  ~KeptTensors();
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;

  /// Puts them back, without gradients.
  void restore() const;
  /// From here on the module has meta tensors of the same shapes.
  void take_away() const;

 private:
  torch::nn::Module& net_;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

/// A step of a user's module, on `rows` rows of a rank with the shapes of the sample.
struct ModuleStep {
  const Trainable& net;
  const std::vector<Technique>& techniques;
  const MakeOptimizer& optimizer;
  const ParallelOptions& options;
  const StepData& sample;
  int64_t rows = 0;
};

/// Rehearses it on some ranks, in this order: a first rank of a pipeline before those behind it.
std::vector<Rehearsal> rehearse_module(const ModuleStep& step, const KeptTensors& kept, RehearsedWorld world,
                                       const std::vector<int>& ranks);

}  // namespace caravan
