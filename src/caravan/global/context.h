#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"

namespace caravan {

class GlobalState;

struct GlobalOptions {
  /// Ops that run on whole tensors, and operands that are neither global nor of one value, are errors.
  bool is_strict = false;
  /// Ops that strict mode lets run on whole tensors: "aten::sort".
  std::vector<std::string> may_run_whole{};
  /// Compares a hash of each plain operand, and of each value that is distributed, over all ranks: 16 bytes to each for
  /// every such tensor. One that differs is an error that names the op and the ranks. Off, only the first eight values
  /// that are distributed are compared.
  bool checks_plain = false;
  /// The axes of the mesh that global tensors know; on the others each coordinate has tensors of its own. Empty: all.
  std::vector<std::string> axes{};
  /// On these axes a shard of a parameter is where it rests, as in ZeRO-3: it is gathered for each use. On others, such
  /// as tp, the layout of a parameter says how ops are split too.
  std::vector<std::string> data_axes{"dp"};
  uint64_t seed = 1;  ///< of dropout and of random initial values
};

/// An op that ran on whole tensors although an operand was sharded or partial.
struct WholeOp {
  std::string op;  ///< "aten::sort"
  std::string why;
  int64_t calls = 0;
  int64_t bytes = 0;  ///< that this rank received more than it had
};

/// What the global tensors of one rank have in common: the mesh, the choices for ops, counters. Every rank makes one
/// with the same options, on the thread that computes; global tensors of two contexts do not mix. Global tensors keep
/// what they need of it alive. Cheap to copy.
class GlobalContext {
 public:
  /// Throws UsageError if another library has registered kernels on the dispatch key that global tensors use.
  explicit GlobalContext(const Mesh& mesh, const GlobalOptions& options = {});

  const Mesh& mesh() const noexcept;
  /// The ops that ran on whole tensors, with their reasons, since the start or clear_report().
  std::vector<WholeOp> whole_ops() const;
  /// The same as a table; "" if there are none.
  std::string report() const;
  void clear_report() const;

  const std::shared_ptr<GlobalState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<GlobalState> state_;
};

}  // namespace caravan
