/// Moves a matrix on three ranks (threads of this process) from placement to placement by hand. A move never changes
/// the matrix, only which rank holds which piece. At the end a gradient takes the same way back, by the law: the
/// backward of (a -> b) is (dual(b) -> dual(a)).

#include <array>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/redistribute/redistribute.h"

using namespace caravan;

constexpr int kRanks = 3;
using Held = std::array<at::Tensor, kRanks>;  // the piece of each rank

std::string text(const at::Tensor& piece) {
  std::string out;
  for (int64_t row = 0; row < piece.size(0); ++row) {
    if (row > 0) out += "/ ";
    for (int64_t column = 0; column < piece.size(1); ++column)
      out += fmt::format("{:g} ", piece[row][column].item<double>());
  }
  return out.empty() ? "-" : out;
}

void print(const std::string& what, const Held& held) {
  fmt::print("{:<16}", what);
  for (const at::Tensor& piece : held) fmt::print("| {:<19}", text(piece));
  fmt::print("\n");
}

int main() {
  const Runtime runtime;
  const at::Tensor whole = at::arange(1, 7, at::kDouble).view({3, 2});
  const std::vector<Placement> stops{
      Shard{0}, Shard{1, {1, 0, 1}}, Replicate{}, Partial{}, Shard{0}, Shard{.dim = 0, .owner = 1, .rows = 3}};
  std::vector<Held> held(stops.size());
  Held gradient;

  run_thread_ranks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    const Mesh mesh = Mesh::create(world, {{"tp", kRanks}});
    const MeshAxis& tp = mesh["tp"];
    const at::Tensor x = whole.narrow(0, mesh.rank(), 1).clone().requires_grad_();
    Layout layout{{"tp", stops[0]}};
    at::Tensor y = x;
    for (size_t i = 0; i < stops.size(); ++i) {
      y = redistribute(y, layout, tp, stops[i], "the matrix");
      layout = layout.moved("tp", stops[i]);
      held[i][mesh.rank()] = y.detach();
    }
    backward(y.square().sum(), {{"tp", Partial{}}});  // a sum over shards is Partial
    gradient[mesh.rank()] = x.grad();
  });

  fmt::print("{:<16}| rank 0             | rank 1             | rank 2\n", "1 2 / 3 4 / 5 6");
  for (size_t i = 0; i < stops.size(); ++i) print(stops[i].to_string(), held[i]);
  print("gradient S(0)", gradient);

  // After five moves and five back, the gradient of the sum of squares is 2 x, as on one process.
  const bool is_right = at::equal(at::cat({gradient[0], gradient[1], gradient[2]}), 2 * whole) &&
                        at::equal(held[2][2], whole) && at::equal(held[5][1], whole);
  fmt::print("{}\n", is_right ? "the gradient is 2 x, as on one process" : "WRONG");
  return is_right ? 0 : 1;
}
