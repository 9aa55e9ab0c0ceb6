#pragma once

#include <vector>

#include "caravan/base/memory/page_loan.h"
#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Lends the memory of the gradients to activations, from the begin of a step until backward adds to them, bucket by
/// bucket: FlatState::lends_gradients. On the device the two are then never there at the same time.
class GradientLoan {
 public:
  /// `state` outlives this.
  explicit GradientLoan(const FlatState& state);

  /// Lends what is not lent yet.
  void lend();
  bool is_lent(const Bucket& bucket) const { return is_lent_[static_cast<size_t>(bucket.index)]; }
  /// Returns whether the bucket was lent. Its contents are then unspecified, and so are those of its gaps.
  bool take_back(const Bucket& bucket);

 private:
  const FlatState& state_;
  std::vector<PageLoan> loans_;  ///< by piece of the gradients
  std::vector<bool> is_lent_;    ///< by bucket
};

}  // namespace caravan
