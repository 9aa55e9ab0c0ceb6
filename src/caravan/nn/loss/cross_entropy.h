#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/nn/pending_gradient.h"
#include "caravan/nn/row_reduction.h"
#include "caravan/nn/tiles.h"

namespace caravan {

/// loss_scale * sum over the tokens with a target of -log softmax(capped(hidden weight^T))[label], capped as by
/// soft_capped. Fused, in chunks of tokens:
/// only the logits of one chunk exist at a time, in the compute dtype. Statistics are fp32 (fp64 for fp64).
///
///   {hidden [.., width], labels [..] int64} -> {loss}, a scalar, fp32 (fp64 for fp64); 0 if no token has a target.
///           With ForwardContext::preference loss_scale * the sum over pairs (preference_loss.h), with the logits
///           computed twice; in the pass of a reference model the log probabilities of each sequence
///   weight  [vocabulary, width], of the dtype of hidden: fp32, bf16 or fp64
///   bias    [vocabulary], added to the logits before they are capped; may be null
///   grad    of hidden, weight and bias, if required: computed in forward, chunk by chunk. The gradient of weight is
///           summed in fp32, in one buffer for all forwards in flight (see PendingGradient). Not differentiable twice.
///   throws  DataError for a label that is neither a row of weight nor kIgnoredLabel; ShapeError for shapes or dtypes
///           that do not match; UsageError, in backward, for an incoming gradient other than 1
class CrossEntropy final : public Module {
 public:
  explicit CrossEntropy(Parameter& weight, Parameter* bias = nullptr, double logits_cap = 0);

  /// The vocabulary is split over ranks, and weight holds the rows from `first_row` on: `reduction` combines maximum
  /// and sums of every token's softmax, so that every rank has the whole loss. Null: the vocabulary is whole.
  void set_row_reduction(std::shared_ptr<RowReduction> reduction, int64_t first_row);
  /// The weight is cut into these (tiled_cross_entropy.h); there is no bias.
  void use_tiles(const Tiles& tiles);

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  Parameter& weight_;
  Parameter* bias_;
  double logits_cap_;
  PendingGradient pending_;
  std::shared_ptr<RowReduction> reduction_;
  int64_t first_row_ = 0;
  const Tiles* tiles_ = nullptr;
};

}  // namespace caravan
