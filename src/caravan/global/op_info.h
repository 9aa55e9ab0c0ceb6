#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "caravan/global/operation.h"
#include "caravan/global/solve.h"
#include "caravan/global/state.h"
#include "caravan/global/taken_apart.h"

namespace caravan {

/// What is known of an op before any call of it.
struct OpInfo {
  enum class Kind : uint8_t {
    tensor,
    tensors,   ///< a list
    integers,  ///< an int, a bool, or a list of them: part of what a rule depends on
    number,    ///< a double or a Scalar: rules ask whether it is 0, 1 or another, and whether two in a row are equal
    text,      ///< a string
    other,
  };
  struct Return {
    int alias = -1;           ///< the argument that it is or views
    bool is_written = false;  ///< it is that argument, written in place
    bool is_list = false;
  };

  explicit OpInfo(const c10::OperatorHandle& op);

  std::string name;
  const Rule* rule = nullptr;
  const TakenApart* parts = nullptr;  ///< it runs as other ops
  std::vector<Kind> arguments;
  std::vector<bool> is_written;  ///< of each argument
  std::vector<Return> returns;
  bool writes = false;
  bool changes_sizes = false;  ///< in place, of the tensor and not of its elements: transpose_
  bool keeps_roots = false;    ///< it may make or keep a PendingRoot
  bool has_out = false;        ///< it writes to an argument "out"
  Solutions solutions{};
  const Solutions::value_type* last = nullptr;  ///< the one that was found last
};

/// How to run a call of which rule, layouts, sizes and ints are known.
struct Solution {
  std::vector<const Placed*> operands;  ///< to which each is moved
  std::vector<bool> is_moved;           ///< of each operand
  std::vector<bool> is_written;         ///< of each operand
  bool any_moved = false;
  struct Output {
    const Placed* placed;
    std::vector<std::pair<int, int64_t>> cut_dims;  ///< dims that are cut, with their sizes in the global tensor
  };
  std::vector<Output> outputs;
  std::vector<std::pair<int, c10::IValue>> arguments;  ///< those that differ on a piece
  Placing placing;
  TypedCall operation;
  bool uses_kernel = false;
  bool writes_back = false;  ///< a written operand is moved for the op, and back
  std::string why_whole;     ///< not "": runs on whole tensors although an operand is not
};

}  // namespace caravan
