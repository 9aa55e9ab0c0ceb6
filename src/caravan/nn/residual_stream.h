#pragma once

#include <string_view>
#include <utility>

#include "caravan/nn/norm.h"
#include "caravan/nn/ops.h"

namespace caravan {

/// The stream of a block: `x += branch(x.normed(norm), context)`. A sum waits for the norm that follows it,
/// so that both are one pass over memory (Norm::add_and_run). Lives in one forward of the block `what`.
class ResidualStream {
 public:
  ResidualStream(at::Tensor value, const ForwardContext& context, std::string_view what)
      : value_(std::move(value)), context_(context), what_(what) {}

  ResidualStream& operator+=(at::Tensor branch) {
    value();
    branch_ = std::move(branch);
    return *this;
  }

  /// The norm of the sum so far.
  at::Tensor normed(Norm& norm) {
    NormedSum both = norm.add_and_run(value_, std::exchange(branch_, {}), context_, what_);
    value_ = std::move(both.sum);
    return std::move(both.normed);
  }

  /// The stream goes on from the norm of the sum so far.
  void replace(Norm& norm) { value_ = normed(norm); }

  /// The sum so far.
  const at::Tensor& value() {
    if (branch_.defined()) value_ = add(value_, std::exchange(branch_, {}), context_, what_);
    return value_;
  }

 private:
  at::Tensor value_;
  at::Tensor branch_{};  ///< not yet added; may be undefined
  const ForwardContext& context_;
  std::string_view what_;
};

}  // namespace caravan
