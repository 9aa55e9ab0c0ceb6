#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/global/proof.h"

namespace caravan::testing {

/// An op that moves operands under some assignments that are right without a move.
struct ConservativeOp {
  int count = 0;
  std::string reason;
};

/// conservative.txt, by op.
std::map<std::string, ConservativeOp> read_conservative();

/// Fails the test if more than 5 % of the assignments that are right on the pieces have an operand moved. With the
/// libtorch of the list, whose tags decide about rules, also if the list is not what was counted: an op that is not in
/// it, or has more than it says, or none any more. `has`: the ops that were proved. CARAVAN_WRITE_DOCS=1 writes the
/// list anew.
void check_conservative(const std::map<std::string, ProofCount>& counts,
                        const std::function<bool(const std::string&)>& has);

}  // namespace caravan::testing
