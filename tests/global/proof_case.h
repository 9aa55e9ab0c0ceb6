#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/global/op_samples.h"

namespace caravan::testing {

/// A tensor among the arguments of a sample.
struct ProofOperand {
  at::Tensor value;
  int argument = 0;  ///< of the schema
  int element = -1;  ///< in a list of tensors
  bool is_written = false;
};

/// What a call gives: the returned values and the written arguments, lists taken apart, and the gradients of the
/// operands, undefined for those that have none.
struct ProofOutcome {
  std::vector<c10::IValue> values;
  std::vector<at::Tensor> gradients;
};

/// A sample, its operands and what it gives on plain tensors: the reference of every placement.
class ProofCase {
 public:
  /// Calls the op on plain tensors, also with gradients. Throws what the op throws.
  explicit ProofCase(const OpSample& sample);
  /// The same call with these values of the operands. Throws what the op throws.
  ProofCase with_values(const std::vector<at::Tensor>& values) const;

  const OpSample& sample() const noexcept { return *sample_; }
  std::string name() const;
  /// "aten::add.Tensor(self=f64[6, 4], other=f64[4], alpha=1)".
  std::string text() const;
  const std::vector<ProofOperand>& operands() const noexcept { return operands_; }
  const ProofOutcome& reference() const noexcept { return reference_; }
  bool is_determined() const noexcept { return sample_->determined(); }
  bool has_gradients() const noexcept { return has_gradients_; }
  /// Of each value: the cotangent of the reference; undefined for a value without a gradient.
  const std::vector<at::Tensor>& cotangents() const noexcept { return cotangents_; }
  /// Number of the operand that value `i` is after the call; -1 if it is a result.
  int written_operand(size_t i) const { return written_.at(i); }

  /// The cotangent of value `i`, which is `value`.
  using Cotangent = std::function<at::Tensor(size_t i, const at::Tensor& value)>;
  /// Calls the op on these tensors instead of the operands; with a cotangent also its gradients.
  ProofOutcome call(const std::vector<at::Tensor>& tensors, const Cotangent& cotangent) const;

 private:
  std::vector<c10::IValue> values_of(const std::vector<at::Tensor>& tensors) const;
  void find_reference();
  bool find_gradients(std::vector<bool> needs_gradient);

  const OpSample* sample_;
  std::vector<ProofOperand> operands_;
  std::vector<bool> needs_gradient_;
  ProofOutcome reference_;
  std::vector<at::Tensor> cotangents_;
  std::vector<int> written_;
  bool has_gradients_ = false;
};

/// What is different between a value and the one that is expected, relative to the largest element; "" if nothing is.
/// Integers must be equal. `checks_elements`: else only dtype and sizes.
std::string difference(const c10::IValue& value, const c10::IValue& expected, double tolerance, bool checks_elements);

/// 1e-12 for doubles, whose sums have at most 2304 terms in another order, more for what has fewer digits and for the
/// ops that lose some.
double tolerance_of(const std::string& op, at::ScalarType dtype);

/// "f64[6, 4]".
std::string tensor_text(const at::Tensor& tensor);

}  // namespace caravan::testing
