#pragma once

#include "caravan/techniques/compression/error_feedback.h"

namespace caravan {

/// Each rank sends the entries of largest magnitude of each bucket, and keeps the rest in a residual that is added to
/// the next gradients (error feedback). (Lin et al., "Deep gradient compression", ICLR 2018; Stich et al., "Sparsified
/// SGD with memory", NeurIPS 2018.)
///
///   sends (n-1) x 8 bytes for each chosen entry (index and value), 12 in a bucket of 2^31 or more entries
///   memory: 4 bytes a parameter for the residual
class TopKHook final : public ErrorFeedbackHook {
 public:
  /// `fraction` of the entries of a bucket are sent, at least one: above 0, at most 1. Throws UsageError.
  explicit TopKHook(double fraction = 0.01);

  std::string name() const override;
  void reduce(const GradientRange& range, TransferStages& stages) override;

 private:
  double fraction_;
};

}  // namespace caravan
