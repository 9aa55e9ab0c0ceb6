#pragma once

#include <string>
#include <vector>

#include "caravan/module/module.h"

namespace caravan {

/// Which random numbers a dropout draws, and where its tensor lies in the global one.
struct DropoutKey {
  uint64_t seed = 0;
  std::string name;
  int64_t step = 0;
  std::vector<int64_t> offset;        ///< per dim, of the local tensor's first element
  std::vector<int64_t> global_shape;  ///< of the whole global batch
};

/// x with each element zeroed with probability `dropout`, else scaled by 1 / (1 - dropout). Element i of the global
/// tensor is kept or not by number i of the stream (seed, name, step): the same on every layout, rank and
/// micro-batch. The mask is drawn again in backward instead of being kept.
at::Tensor counter_dropout(const at::Tensor& x, double dropout, const DropoutKey& key);

/// Dropout of the stream [batch, sequence, feature]; the identity unless training.
class Dropout final : public Layer {
 public:
  explicit Dropout(double dropout) : dropout_(dropout) {}

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double dropout_;
};

}  // namespace caravan
