#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/global/proof_case.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {

/// A layout of each operand.
using Assignment = std::vector<Layout>;
std::string assignment_text(const Assignment& assignment);

/// The piece of `x` that `rank` has. Summands of P are multiples of x by powers of two that differ from element to
/// element, so that their sum is exact: also ops that jump (ties, roundings, signs) see the same tensor.
at::Tensor piece_of(const at::Tensor& x, const Layout& layout, const Axes& axes, int rank, uint64_t seed);
/// The tensor that the pieces of one axis denote under a placement; undefined if they do not fit.
at::Tensor whole_of(const std::vector<at::Tensor>& pieces, const Placement& placement);

/// Placements of a tensor on one axis of `n` ranks: R, P for a floating tensor, every dim cut evenly (else as evenly as
/// it goes), also unevenly and in two blocks where it can be.
std::vector<Placement> placements_on(const at::Tensor& x, int n);

/// Assignments of all operands on axis "t" of `n` ranks: all of them if there are at most `most`, else those that cut
/// each label of the op's rule wherever it is, those of one operand, and a choice that `seed` determines.
std::vector<Assignment> assignments_on_one_axis(const ProofCase& proof, int n, size_t most, uint64_t seed);
/// On axes "a" and "b" of 2 ranks: both on one label, one on each of two labels, others by chance; at most `most`.
std::vector<Assignment> assignments_on_two_axes(const ProofCase& proof, size_t most, uint64_t seed);

}  // namespace caravan::testing
