#include "caravan/techniques/grid/summa.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/record.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/grid/panels.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::summa_test {
namespace {

TEST(PanelSchedule, IsATable) {
  EXPECT_EQ(to_string(panel_schedule(1, false)), "gather 0, multiply 0, free 0");
  EXPECT_EQ(to_string(panel_schedule(3, false)),
            "gather 0, gather 1, multiply 0, free 0, gather 2, multiply 1, free 1, multiply 2, free 2");
  EXPECT_EQ(to_string(panel_schedule(3, true)),
            "gather 0, gather 1, multiply 0, free 0, reduce 0, gather 2, multiply 1, free 1, finish 0, reduce 1, "
            "multiply 2, free 2, finish 1, reduce 2, finish 2");
}

TEST(PanelSchedule, WaitsAtOnceWithoutOverlap) {
  EXPECT_EQ(to_string(panel_schedule(2, false, false)), "gather 0, multiply 0, free 0, gather 1, multiply 1, free 1");
  EXPECT_EQ(to_string(panel_schedule(2, true, false)),
            "gather 0, multiply 0, free 0, reduce 0, finish 0, gather 1, multiply 1, free 1, reduce 1, finish 1");
}

/// One in use and one in flight, of panels and of their gradients; the next travels while one is multiplied.
TEST(PanelSchedule, HoldsTwoPanels) {
  using enum PanelAction::Kind;
  for (const int count : {2, 3, 16}) {
    for (const bool reduces : {false, true}) {
      std::map<PanelAction::Kind, int> done;
      for (const auto& [kind, panel] : panel_schedule(count, reduces)) {
        EXPECT_EQ(panel, done[kind]) << "each kind in order";
        if (kind == multiply) {
          EXPECT_EQ(done[gather], std::min(panel + 2, count)) << "the next panel is under way";
          EXPECT_EQ(done[reduce] - done[finish], reduces && panel > 0 ? 1 : 0) << "the gradient before is under way";
        }
        ++done[kind];
        EXPECT_LE(done[gather] - done[free], 2);
        EXPECT_LE(done[multiply] - done[finish], reduces ? 2 : count);
        EXPECT_LE(done[multiply], done[gather]);
        EXPECT_LE(done[reduce], done[multiply]);
        EXPECT_LE(done[finish], done[reduce]);
      }
      for (const auto kind : {gather, multiply, free}) EXPECT_EQ(done[kind], count);
      EXPECT_EQ(done[reduce], reduces ? count : 0);
      EXPECT_EQ(done[finish], done[reduce]);
    }
  }
}

constexpr int64_t kRows = 6, kLength = 5, kIn = 12;
const Layout kX{{"row", Shard{0}}, {"col", Shard{2}}};
const Layout kW{{"col", Shard{0}}, {"row", Shard{1}}};

/// Small integers: every order of a sum gives the same bits.
at::Tensor integers(at::IntArrayRef shape, int64_t step) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kDouble).mul(step).remainder(13).sub(6).view(shape);
}

at::Tensor piece(const at::Tensor& x, const Layout& layout, const Mesh& mesh, at::ScalarType type) {
  const Box box = local_box(x.sizes().vec(), layout, mesh);
  at::Tensor part = x;
  for (int64_t dim = 0; dim < x.dim(); ++dim) part = part.narrow(dim, box.offset[dim], box.size[dim]);
  return part.to(type).contiguous();
}

/// The product whose operands are gathered whole, by the law: results, and the gradients of x and the weights.
struct Plain {
  Plain(const Mesh& mesh, const at::Tensor& x, const Tensors& weights, const Tensors& dys) {
    const at::Tensor x_leaf = x.clone().requires_grad_();
    Tensors leaves;
    for (const at::Tensor& weight : weights) leaves.push_back(weight.clone().requires_grad_());
    const at::Tensor rows = redistribute(x_leaf, kX, mesh["col"], Replicate{});
    at::Tensor sum = at::zeros({}, x.options());
    for (size_t i = 0; i < weights.size(); ++i) {
      ys.push_back(at::linear(rows, redistribute(leaves[i], kW, mesh["row"], Replicate{})));
      sum = sum + (ys.back() * dys[i]).sum();
    }
    sum.backward();
    dx = x_leaf.grad();
    for (const at::Tensor& leaf : leaves) dws.push_back(leaf.grad());
  }
  Tensors ys, dws;
  at::Tensor dx;
};

/// Three weights of two heights that share their panels of x, as grouped queries, keys and values do.
TEST(Summa, MatchesTheLawBitForBit) {
  for (const int side : {1, 2, 3}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      on_mesh({{"row", side}, {"col", side}}, [&](const Mesh& mesh) {
        const at::Tensor x = piece(integers({kRows, kLength, kIn}, 5), kX, mesh, type);
        Tensors weights, dys;
        for (const int64_t out : {18, 6, 6}) {
          const auto step = static_cast<int64_t>(weights.size()) + 3;
          weights.push_back(piece(integers({out, kIn}, step), kW, mesh, type));
          dys.push_back(piece(integers({kRows, kLength, out}, step + 4), kX, mesh, type));
        }
        const auto summa = summa_product(mesh["row"], mesh["col"]);
        const Plain plain(mesh, x, weights, dys);
        const at::NoGradGuard no_grad;
        const Tensors ys = summa->forward(x, weights);
        const auto all = summa->backward(x, weights, dys, true, {true, true, true});
        const auto no_x = summa->backward(x, weights, dys, false, {false, true, false});
        const auto x_alone = summa->backward(x, weights, dys, true, {false, false, false});
        const bool is_exact = type != at::kBFloat16;  // bf16 rounds the plain sums of gradients between ranks
        const auto is_same = [&](const at::Tensor& a, const at::Tensor& b) {
          return is_exact ? at::equal(a, b) : at::allclose(a, b, 1e-2, 1);
        };
        for (size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(is_same(ys[i], plain.ys[i])) << type << " y " << i;
          EXPECT_TRUE(is_same(all.weights[i], plain.dws[i])) << type << " dw " << i;
        }
        EXPECT_TRUE(is_same(all.x, plain.dx)) << type << " dx";
        EXPECT_TRUE(at::equal(no_x.weights[1], all.weights[1]) && !no_x.weights[0].defined() && !no_x.x.defined());
        EXPECT_TRUE(at::equal(x_alone.x, all.x) && !x_alone.weights[2].defined());
      });
    }
  }
}

/// The same bytes on every rank: (q-1)/q^2 of x and W forward, twice that backward; nothing unneeded is sent.
TEST(Summa, SendsTheExpectedBytes) {
  constexpr int kSide = 4;
  for (const int rank : {0, 5, 15}) {
    const Mesh mesh = Mesh::create(make_record_world(rank, kSide * kSide), {{"row", kSide}, {"col", kSide}});
    const auto options = at::TensorOptions().dtype(at::kFloat).device(at::kMeta);
    const at::Tensor x = at::empty({2, 8, 16}, options), dy = at::empty({2, 8, 24}, options);
    const at::Tensor weight = at::empty({24, 16}, options);
    const auto summa = summa_product(mesh["row"], mesh["col"]);
    int64_t before = mesh.bytes_sent();
    const int64_t of_x = (kSide - 1) * x.numel() * 4, of_weight = (kSide - 1) * weight.numel() * 4;
    const auto expect_sent = [&](int64_t bytes) {
      EXPECT_EQ(mesh.bytes_sent() - before, bytes);
      before = mesh.bytes_sent();
    };
    EXPECT_EQ(summa->forward(x, {weight}).front().sizes(), dy.sizes());
    expect_sent(of_x + of_weight);
    const auto gradients = summa->backward(x, {weight}, {dy}, true, {true});
    expect_sent(2 * (of_x + of_weight));
    EXPECT_EQ(gradients.x.sizes(), x.sizes());
    EXPECT_EQ(gradients.weights.front().sizes(), weight.sizes());
    (void)summa->backward(x, {weight}, {dy}, true, {false});
    expect_sent(of_x + of_weight);
    (void)summa->backward(x, {weight}, {dy}, false, {true});
    expect_sent(of_x + of_weight);
  }
}

/// Memory in addition to the results: two panels of x and of W, and the gradients of two, one of which is in flight.
/// The scratch of products is allowed for: a copy of dy, a packed weight, a result of one product.
/// Eight panels would be the whole.
TEST(Summa, GathersNothingWhole) {
  constexpr int kSide = 8;
  const Mesh mesh = Mesh::create(make_record_world(9, kSide * kSide), {{"row", kSide}, {"col", kSide}});
  const at::Tensor x = at::zeros({4, 64, 128}), weight = at::zeros({256, 128}), dy = at::zeros({4, 64, 256});
  const auto summa = summa_product(mesh["row"], mesh["col"]);
  MemoryCounter& counter = MemoryCounter::current();
  const int64_t before = counter.live_bytes();
  const auto peak_of = [&](const std::function<void()>& body) {
    counter.reset_peak();
    body();
    return counter.peak_bytes() - before;
  };
  const auto panel = static_cast<int64_t>(x.nbytes() + weight.nbytes());
  const auto result = static_cast<int64_t>(dy.nbytes());
  const auto scratch = static_cast<int64_t>(weight.nbytes());
  EXPECT_LE(peak_of([&] { (void)summa->forward(x, {weight}); }), 2 * result + 2 * panel + scratch);
  const int64_t backward = peak_of([&] { (void)summa->backward(x, {weight}, {dy}, true, {true}); });
  EXPECT_LE(backward, panel + 2 * panel + 2 * panel + result + panel / 2 + scratch);
  EXPECT_GT(backward, 2 * panel);
}

}  // namespace
}  // namespace caravan::testing::summa_test
