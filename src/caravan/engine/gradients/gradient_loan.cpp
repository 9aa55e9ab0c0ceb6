#include "caravan/engine/gradients/gradient_loan.h"

#include "caravan/base/tensor_loan.h"
#include "caravan/base/trace/path_log.h"

namespace caravan {

GradientLoan::GradientLoan(const FlatState& state) : state_(state), is_lent_(state.layout.buckets().size(), false) {
  if (!state.lends_gradients) return;
  for (const FlatMemory::Piece& piece : state.gradients.pieces()) loans_.push_back(loan_of(piece.memory));
}

void GradientLoan::lend() {
  if (loans_.empty()) return;
  count_path("gradients for lending");  // also of small models, whose gradients fill no page: a proof runs these
  for (const PageLoan& loan : loans_) loan.lend();
  for (const Bucket& bucket : state_.layout.buckets()) {
    is_lent_[static_cast<size_t>(bucket.index)] = bucket.is_trained && bucket.sharded_count > 0;
  }
}

bool GradientLoan::take_back(const Bucket& bucket) {
  const auto index = static_cast<size_t>(bucket.index);
  if (!is_lent_[index]) return false;
  is_lent_[index] = false;
  const FlatMemory::Piece& piece = state_.gradients.piece(bucket.sharded_offset, bucket.sharded_count);
  const auto size = piece.memory.element_size();
  const auto offset = static_cast<size_t>(bucket.sharded_offset - piece.offset) * size;
  loans_[static_cast<size_t>(&piece - state_.gradients.pieces().data())].reclaim(
      offset, static_cast<size_t>(bucket.sharded_count) * size);
  return true;
}

}  // namespace caravan
