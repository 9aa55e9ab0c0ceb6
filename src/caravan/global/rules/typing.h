#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/global/local_call.h"
#include "caravan/global/operation.h"

namespace caravan {

/// The type of a call, made up by the names of its arguments.
class Typing {
 public:
  explicit Typing(const OpCall& call) : call_(call) {
    const auto& arguments = call.schema().arguments();
    for (int i = 0; i < call.num_operands() && !arguments[call.operand(i).argument].is_out(); ++i) {
      is_set_.push_back(false);
      operation.inputs.emplace_back();
    }
  }

  char next() { return labels_.next(); }
  std::string next_dim(int64_t size) { return size == 1 ? "" : std::string(1, labels_.next()); }
  Dims of(const std::vector<int64_t>& sizes) { return labels_.of(sizes); }
  /// Labels for the dims of an argument; {} if it is None.
  Dims of(std::string_view argument) {
    const int i = operand_of(argument);
    if (i < 0) return {};
    Dims dims = labels_.of(call_.sizes(i));
    set(argument, dims);
    return dims;
  }

  /// The dims of an argument, unless it is None or not in the schema. Those of one element get no label. One of another
  /// number of dims stays whole.
  void set(std::string_view argument, Dims dims) {
    const int i = operand_of(argument);
    if (i < 0 || call_.sizes(i).size() != dims.size()) return;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (call_.sizes(i)[dim] == 1) dims[dim] = "";
    }
    operation.inputs.at(i) = std::move(dims);
    is_set_.at(i) = true;
  }

  void need(const std::string& labels) { operation.whole += labels; }
  void need(const Dims& dims) {
    for (const std::string& dim : dims) operation.whole += dim;
  }

  /// Arguments that were not set are needed whole.
  TypedCall finish() {
    for (size_t i = 0; i < is_set_.size(); ++i) {
      if (is_set_[i]) continue;
      operation.inputs[i] = labels_.of(call_.sizes(i));
      need(operation.inputs[i]);
    }
    return std::move(operation);
  }

  /// -1 for an argument that is not there, or out=.
  int operand_of(std::string_view argument) const {
    const int i = call_.index(argument) < 0 ? -1 : call_.operand_of(argument);
    return i < static_cast<int>(is_set_.size()) ? i : -1;
  }

  TypedCall operation{};

 private:
  const OpCall& call_;
  Labels labels_;
  std::vector<bool> is_set_;
};

/// The op itself, on contiguous copies of these arguments, or copies with the channels last if they lie so: pieces may
/// be slices, which some ops read as if they were contiguous, or refuse.
inline LocalKernel on_contiguous(std::vector<std::string> arguments) {
  return [arguments = std::move(arguments)](LocalCall& call) {
    for (const c10::Argument& each : call.schema().arguments()) {
      if (std::find(arguments.begin(), arguments.end(), each.name()) == arguments.end()) continue;
      const at::Tensor tensor = call.tensor(each.name());
      if (tensor.defined()) call.argument(each.name()) = tensor.contiguous(tensor.suggest_memory_format());
    }
    call.run();
  };
}

/// All labels of `dims`.
inline std::string labels_of(const Dims& dims) {
  std::string all;
  for (const std::string& dim : dims) all += dim;
  return all;
}

/// Whether an operand is cut in blocks, so that what a rank has of a label is no range.
inline bool has_blocks(const OpCall& call) {
  for (const GlobalOperand& operand : call.operands()) {
    for (const auto& [axis, placement] : operand.layout->entries()) {
      if (placement.is_shard() && placement.blocks() > 1) return true;
    }
  }
  return false;
}

}  // namespace caravan
