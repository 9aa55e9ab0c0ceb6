#pragma once

#include "caravan/engine/gradients/comm_hook.h"

namespace caravan {

/// Common part of hooks with error feedback: a residual on each rank, 4 bytes a parameter, of what was not sent.
/// Gradients are kept and reduced in fp32 (fp64).
class ErrorFeedbackHook : public CommHook {
 public:
  std::string wrong_with(at::ScalarType kept, at::ScalarType reduced) const override;
  void prepare(int64_t count, const at::TensorOptions& options) override;
  std::vector<std::pair<std::string, at::Tensor>> summands() const override { return {{"residual", residual_}}; }

 protected:
  at::Tensor residual_;  ///< flat, laid out as the gradients
};

}  // namespace caravan
