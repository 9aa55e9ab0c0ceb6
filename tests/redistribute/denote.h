#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/mesh/layout.h"

namespace caravan::testing {

/// An independent implementation of what layouts denote: splits whole tensors into pieces for all ranks of a mesh and
/// reassembles them, on the test's own thread. Only the code under test runs on rank threads.

using Axes = std::vector<AxisSize>;

/// The pieces of one tensor, by rank.
struct Pieces {
  Axes axes;
  Layout layout;
  std::vector<at::Tensor> local;
};

int num_ranks(const Axes& axes);
/// The coordinate of `rank` on `axis`.
int coord_of(const Axes& axes, int rank, const std::string& axis);
Pieces no_pieces(const Axes& axes, const Layout& layout);

/// Uniform in (-1, 1), fp64, determined by the arguments.
at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed);

/// Pieces that denote `x`. The summands of P are random, since nothing may depend on how a sum is split. Copies of R
/// and I are equal, summand by summand.
Pieces from_global(const Axes& axes, const at::Tensor& x, const Layout& layout, uint64_t seed = 0);

/// The tensor that the pieces denote: of R and I any copy, of S the concatenation, minor axis first, of P the sum.
/// Throws std::runtime_error if copies of R or I differ or pieces do not fit.
at::Tensor to_global(const Pieces& pieces);
/// The same, but returns an undefined tensor if to_global throws.
at::Tensor try_to_global(const Pieces& pieces);

/// The gradients of the pieces, laid out dually. A missing gradient is a zero summand.
Pieces gradients(const Pieces& pieces);
/// Fresh autograd leaves that require grad.
Pieces leaves(const Pieces& pieces);

/// <x, g>. Counts one rank of an I axis (one computation done n times) and all ranks of other axes.
double pairing(const Pieces& x, const Pieces& g);

/// fp64 sums of a handful of terms in another order: 1e-10 relative to the largest element is far above their rounding
/// and far below any wrong term.
bool is_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-10);

/// k if a = k b, else 0.
double ratio(const at::Tensor& a, const at::Tensor& b);

/// Runs `body` on thread ranks with a mesh; waits end after 30 s, also on a busy machine.
void on_mesh(const Axes& axes, const std::function<void(const Mesh&)>& body);

/// True if `body` throws LayoutError.
bool is_refused(const std::function<void()>& body);

/// The message of the `E` that `body` throws; "" if it does not throw.
template <typename E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace caravan::testing
