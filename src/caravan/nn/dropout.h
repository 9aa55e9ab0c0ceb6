#pragma once

#include <string>
#include <vector>

#include "caravan/module/module.h"

namespace caravan {

/// The random numbers that a dropout draws.
struct DropoutKey {
  uint64_t seed = 0;
  std::string name{};
  int64_t step = 0;
  std::vector<DimIndex> index{};  ///< per dim: the elements of the global tensor that the local one has
};

/// x with each element zeroed with probability `dropout`, else scaled by 1 / (1 - dropout). Number i of the stream
/// (seed, name, step) decides on element i of the global tensor, so the result is the same for every layout, rank and
/// micro-batch. Backward draws the mask again instead of saving it. Throws ShapeError if `index` is not that of x.
at::Tensor counter_dropout(const at::Tensor& x, double dropout, const DropoutKey& key);

/// Dropout on the stream [batch, sequence, feature]; a no-op unless training.
class Dropout final : public Layer {
 public:
  explicit Dropout(double dropout) : dropout_(dropout) {}

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double dropout_;
};

}  // namespace caravan
