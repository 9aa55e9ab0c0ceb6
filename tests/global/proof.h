#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/global/proof_case.h"
#include "tests/global/proof_layouts.h"

namespace caravan::testing {

/// How the op of a sample ran under one assignment.
struct ProofRun {
  enum class Way : uint8_t {
    rule,      ///< by a rule
    gathered,  ///< by a rule that needs something whole that was sharded
    whole,     ///< without a rule
    plain,     ///< no global tensor came to the library: the op makes one of sizes alone
  };
  Assignment assignment;
  Way way = Way::plain;
  bool moves = false;   ///< an operand was moved
  bool is_cut = false;  ///< an axis cuts the op: it computes a part, or a summand
  std::string refusal;  ///< the UsageError of every rank; "" if none
  std::string failure;  ///< what differs from the whole tensor; "" if nothing
};

/// The samples of the file.
const std::vector<OpSample>& proof_samples();

/// Runs a sample under each assignment on thread ranks and compares values, and gradients if it has some, with those of
/// plain tensors on every rank.
std::vector<ProofRun> prove(const ProofCase& proof, const Axes& axes, const std::vector<Assignment>& assignments);

/// Whether the op, called on the raw pieces of each assignment as they are, gives the right values, and gradients,
/// under some placement of each output on the one axis: for the values of the sample and for others, since a tensor of
/// zeros is right under many placements. By brute force, without the library, in processes of their own.
std::vector<bool> are_right_on_pieces(const ProofCase& proof, const Axes& axes,
                                      const std::vector<Assignment>& assignments);

/// What was found of an op.
struct ProofCount {
  int samples = 0;
  int runs = 0;
  int by_rule = 0;
  int gathered = 0;
  int whole = 0;
  int refused = 0;
  int failed = 0;
  int right_on_pieces = 0;  ///< of those that were tried or ran without a move
  int conservative = 0;     ///< right on the pieces, but an operand was moved
  bool is_covered = false;  ///< some sharded operands ran without a move
  bool has_rule = false;
  std::map<std::string, int> conservative_layouts;  ///< with the sizes of one sample
  std::set<std::string> refusals;
};

struct ProofLimits {
  size_t most = 60;  ///< assignments of a sample
  size_t most_pointwise = 60;
  bool tries_pieces = false;
};

/// All samples of the file whose op is chosen by `has` (and CARAVAN_PROOF_OPS). Failures become failures of the test.
std::map<std::string, ProofCount> prove_ops(const Axes& axes, const ProofLimits& limits,
                                            const std::function<bool(const std::string&)>& has);

/// A line for each op, and the totals over the ops of DTensor's registry that are not pointwise.
std::string proof_table(const std::map<std::string, ProofCount>& counts);

}  // namespace caravan::testing
