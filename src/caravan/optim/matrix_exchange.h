#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/optim/matrix_plan.h"

namespace caravan {

/// Brings the pieces of the matrices of a round to their owners, and what becomes of them back to all that hold pieces.
/// Every rank of MatrixRanks calls both for every round, in order. All ranks together send 2 (n-1)/n of a matrix that
/// is cut over n ranks, and another one for each further copy of it; of a matrix that n ranks hold whole, n-1.
class MatrixExchange {
 public:
  /// `plan` and `ranks` outlive this. `options`: dtype and device of what is sent.
  MatrixExchange(const MatrixPlan& plan, const MatrixRanks& ranks, at::TensorOptions options)
      : plan_(plan), ranks_(ranks), options_(options) {}

  /// Elements of this rank's piece of a parameter (WholeMatrix::slot) from `first` on, as a flat tensor.
  using Visit = std::function<void(const WholeMatrix& matrix, int64_t first, const at::Tensor& elements)>;
  /// `own`: by matrix of the round; defined, [rows, columns], for those that this rank owns. `read` fills elements that
  /// this rank sends.
  void gather(const MatrixPlan::Round& round, const std::vector<at::Tensor>& own, const Visit& read) const;
  /// `write` gets all elements of this rank's pieces.
  void scatter(const MatrixPlan::Round& round, const std::vector<at::Tensor>& own, const Visit& write) const;

 private:
  struct Message;
  struct Step;
  template <class F>
  void for_each_message(const Step& step, const F& f) const;
  void move(const Step& step) const;
  void move_own(const Step& step) const;
  void gather_updates(const Step& step) const;

  const MatrixPlan& plan_;
  const MatrixRanks& ranks_;
  at::TensorOptions options_;
};

}  // namespace caravan
