#pragma once

#include <filesystem>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace caravan::testing {

/// A call of an ATen op that op_samples.py recorded.
class OpSample {
 public:
  /// `arguments`: one for each argument of the schema. `outputs`: the returned values, then the arguments that the op
  /// writes, in the order of the schema, as they are afterwards.
  OpSample(c10::OperatorHandle op, c10::Stack arguments, std::vector<c10::IValue> outputs, bool determined);

  const c10::OperatorHandle& op() const { return op_; }

  /// Arguments before the call, each time with tensors of their own, with the strides of the recorded ones.
  c10::Stack arguments() const;

  /// False if the outputs do not follow from the arguments: random numbers, uninitialized memory. Then none are stored.
  bool determined() const { return determined_; }

  /// The recorded outputs, to be compared with those of replay().
  const std::vector<c10::IValue>& outputs() const { return outputs_; }

  /// Calls the op, boxed, with arguments(). Returns what outputs() describes.
  std::vector<c10::IValue> replay() const;

 private:
  c10::OperatorHandle op_;
  c10::Stack arguments_;
  std::vector<c10::IValue> outputs_;
  bool determined_;
};

/// The calls in a file of op_samples.py, those of one op one after the other. Throws a std::runtime_error that names
/// what is wrong: the format, an op that this libtorch lacks, an argument that does not fit its schema.
std::vector<OpSample> read_op_samples(const std::filesystem::path& file);

}  // namespace caravan::testing
