/// Well-known mistakes that the table and the typing rule prevent. Each wrong variant is forced and is wrong by the
/// stated factor; the typed variant is right.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/redistribute/infer.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::traps_test {
namespace {

using Groups = std::vector<std::vector<int>>;

const Placement kR = Replicate{};
const Placement kI = Invariant{};
const Placement kP = Partial{};
Placement shard(int dim) { return Shard{dim}; }

const Groups kProduct{{0, 1}};
const Groups kSum{{0}, {1}};

const Axes kThree{{"t", 3}};
const at::Tensor kW = random_tensor({6, 6}, 1);
const at::Tensor kX = random_tensor({6, 6}, 2);

Pieces place(const at::Tensor& x, const Placement& placement, const Axes& axes = kThree) {
  return from_global(axes, x, {{axes[0].name, placement}});
}
Pieces leaf(const at::Tensor& x, const Placement& placement, const Axes& axes = kThree) {
  return leaves(place(x, placement, axes));
}
at::Tensor move(const at::Tensor& x, const MeshAxis& axis, const Placement& from, const Placement& to) {
  return redistribute(x, {{axis.name(), from}}, axis, to);
}
bool refuses(const OpType& op, const std::vector<Operand>& operands) {
  return is_refused([&] { infer(op, operands); });
}
at::Tensor gradient_of(const at::Tensor& w0, const std::function<at::Tensor(const at::Tensor&)>& loss) {
  const at::Tensor w = w0.clone().requires_grad_();
  loss(w).backward();
  return w.grad();
}

/// Row-parallel y = x W^T, loss = sum of y^2.
TEST(Trap, ALossThatIsRCountsOncePerRank) {
  const at::Tensor want = gradient_of(kW, [](const auto& w) { return kX.matmul(w.t()).square().sum(); });
  const auto factor = [&](const Placement& reduced, bool typed, bool then_invariant) {
    const Pieces w = leaf(kW, shard(1));
    const Pieces x = place(kX, shard(1));
    on_mesh(kThree, [&](const Mesh& mesh) {
      const MeshAxis& t = mesh["t"];
      const at::Tensor y = move(x.local[mesh.rank()].matmul(w.local[mesh.rank()].t()), t, kP, reduced);
      at::Tensor loss = y.square().sum();
      if (then_invariant) loss = move(loss, t, reduced, kI);
      const Placement is = then_invariant ? kI : reduced;
      typed ? backward(loss, {{"t", is}}) : loss.backward();
    });
    return ratio(to_global(gradients(w)), want);
  };
  EXPECT_DOUBLE_EQ(factor(kI, true, false), 1);
  EXPECT_DOUBLE_EQ(factor(kR, true, true), 1);  // R -> I: only coordinate 0 sends a gradient back
  EXPECT_DOUBLE_EQ(factor(kR, false, false), 3);
  EXPECT_TRUE(is_refused([&] { backward(at::ones({}).requires_grad_(), {{"t", kR}}); }));
  EXPECT_TRUE(is_refused([&] { backward(at::ones({}).requires_grad_(), {{"dp", kP}, {"t", shard(0)}}); }));
}

/// The field's gather flag: S -> R before n different uses, S -> I before one use done n times.
TEST(Trap, TheTargetOfAGatherDependsOnItsUse) {
  const at::Tensor v0 = random_tensor({6, 6}, 3);
  const at::Tensor different = gradient_of(kW, [&](const auto& w) { return w.tanh().matmul(v0.t()).square().sum(); });
  const at::Tensor same = gradient_of(kW, [](const auto& w) { return w.tanh().square().sum(); });
  const auto gradient = [&](const Placement& to, bool different_uses) {
    const Pieces x = leaf(kW, shard(0));
    const Pieces v = place(v0, shard(0));
    on_mesh(kThree, [&](const Mesh& mesh) {
      const at::Tensor y = move(x.local[mesh.rank()].tanh(), mesh["t"], shard(0), to);
      (different_uses ? y.matmul(v.local[mesh.rank()].t()) : y).square().sum().backward();
    });
    return to_global(gradients(x));
  };
  EXPECT_TRUE(is_close(gradient(kR, true), different));
  EXPECT_FALSE(is_close(gradient(kI, true), different, 1e-3));  // terms lost
  EXPECT_TRUE(refuses({"tk,nk->tn", "", kProduct}, {{kI}, {shard(0)}}));
  EXPECT_DOUBLE_EQ(ratio(gradient(kI, false), same), 1);
  EXPECT_DOUBLE_EQ(ratio(gradient(kR, false), same), 3);
}

TEST(Trap, AccumulatingOnWhatIsAlreadyReduced) {
  const Axes axes{{"dp", 2}};
  const at::Tensor first = random_tensor({4, 6}, 5);
  const at::Tensor second = random_tensor({4, 6}, 6);
  const Pieces g1 = place(first, kP, axes);
  const Pieces g2 = place(second, kP, axes);
  Pieces wrong = no_pieces(axes, {{"dp", kI}});
  Pieces once = wrong;
  Pieces sharded = no_pieces(axes, {{"dp", shard(0)}});
  on_mesh(axes, [&](const Mesh& mesh) {
    const MeshAxis& dp = mesh["dp"];
    const at::Tensor a = g1.local[mesh.rank()];
    const at::Tensor b = g2.local[mesh.rank()];
    wrong.local[mesh.rank()] = move(move(a, dp, kP, kI) + b, dp, kP, kI);  // one buffer for both
    once.local[mesh.rank()] = move(a + b, dp, kP, kI);
    sharded.local[mesh.rank()] = move(a, dp, kP, shard(0)) + move(b, dp, kP, shard(0));
  });
  EXPECT_TRUE(is_close(to_global(wrong), 2 * first + second));
  EXPECT_TRUE(is_close(to_global(once), first + second));
  EXPECT_TRUE(is_close(to_global(sharded), first + second));
  EXPECT_TRUE(refuses({"nk,nk->nk", "", kSum}, {{kI}, {kP}}));
}

TEST(Trap, ReducingAgainWhatTheLawHasReduced) {
  const at::Tensor want = gradient_of(kW, [](const auto& w) { return kX.matmul(w.t()).square().sum(); });
  const Pieces w = leaf(kW, kI);
  const Pieces x = place(kX, shard(0));
  Pieces again = no_pieces(kThree, {{"t", kI}});
  on_mesh(kThree, [&](const Mesh& mesh) {
    const at::Tensor mine = w.local[mesh.rank()];
    backward(x.local[mesh.rank()].matmul(move(mine, mesh["t"], kI, kR).t()).square().sum(), {{"t", kP}});
    again.local[mesh.rank()] = move(mine.grad(), mesh["t"], kP, kI);
  });
  EXPECT_DOUBLE_EQ(ratio(to_global(gradients(w)), want), 1);
  EXPECT_DOUBLE_EQ(ratio(to_global(again), want), 3);
}

/// A weight used on shards of tokens (a norm under sequence parallelism) is R: its gradient is P.
TEST(Trap, ANormWeightLeftInvariantOnShardsOfTokens) {
  const Axes axes{{"t", 2}};
  const at::Tensor g0 = random_tensor({6}, 4);
  const at::Tensor x0 = random_tensor({4, 6, 6}, 5);
  const at::Tensor c0 = random_tensor({4, 6, 6}, 6);
  const at::Tensor want = gradient_of(g0, [&](const auto& g) { return ((x0 * g).tanh() * c0).sum(); });
  for (const int dim : {0, 1}) {
    const Pieces x = place(x0, shard(dim), axes);
    const Pieces c = place(c0, shard(dim), axes);
    const Pieces typed = leaf(g0, kI, axes);
    const Pieces forced = leaf(g0, kI, axes);
    on_mesh(axes, [&](const Mesh& mesh) {
      const int r = mesh.rank();
      const auto loss = [&](const at::Tensor& g) { return ((x.local[r] * g).tanh() * c.local[r]).sum(); };
      backward(loss(move(typed.local[r], mesh["t"], kI, kR)), {{"t", kP}});
      loss(forced.local[r]).backward();
    });
    EXPECT_TRUE(is_close(to_global(gradients(typed)), want));
    EXPECT_FALSE(try_to_global(gradients(forced)).defined());  // the copies have drifted apart
    EXPECT_TRUE(is_close(forced.local[0].grad() + forced.local[1].grad(), want));
    EXPECT_TRUE(refuses({"thd,d->thd", "", kProduct}, {{shard(dim)}, {kI}}));
  }
}

/// One key head for two tensor ranks: its projection is R, its gradient P.
TEST(Trap, FewerKeyHeadsThanRanks) {
  const Axes axes{{"t", 2}};
  const at::Tensor q0 = random_tensor({2, 4, 4, 3}, 1);
  const at::Tensor x0 = random_tensor({2, 4, 6}, 2);
  const at::Tensor w0 = random_tensor({3, 6}, 3);
  const auto attend = [](const at::Tensor& q, const at::Tensor& k) {
    return at::einsum("bhqk,bkd->bqhd", {at::einsum("bqhd,bkd->bhqk", {q, k}).softmax(-1), k}).square().sum();
  };
  const at::Tensor want = gradient_of(w0, [&](const auto& w) { return attend(q0, x0.matmul(w.t())); });
  const Pieces q = place(q0, shard(2), axes);
  const Pieces w = leaf(w0, kI, axes);
  on_mesh(axes, [&](const Mesh& mesh) {
    const at::Tensor k = x0.matmul(move(w.local[mesh.rank()], mesh["t"], kI, kR).t());
    backward(attend(q.local[mesh.rank()], k), {{"t", kP}});
  });
  EXPECT_TRUE(is_close(to_global(gradients(w)), want));
  EXPECT_EQ(infer({"bqhe,bke->bqhe", "k"}, std::vector<Operand>{{shard(2)}, {kR}}), shard(2));
}

/// RMS norm over a sharded feature: its sum of squares goes P -> R; with P -> I the gradient is wrong.
TEST(Trap, StatisticsOfANormOverAShardedDim) {
  const Axes axes{{"t", 2}};
  const at::Tensor x0 = random_tensor({2, 2, 8}, 1);
  const at::Tensor c0 = random_tensor({2, 2, 8}, 2);
  const auto norm = [](const at::Tensor& x, const at::Tensor& mean_square, const at::Tensor& c) {
    return (x * (mean_square + 1e-5).rsqrt().unsqueeze(-1) * c).sum();
  };
  const at::Tensor want = gradient_of(x0, [&](const auto& x) { return norm(x, x.square().mean(-1), c0); });
  for (const Placement& to : {kR, kI}) {
    const Pieces x = leaf(x0, shard(2), axes);
    const Pieces c = place(c0, shard(2), axes);
    on_mesh(axes, [&](const Mesh& mesh) {
      const at::Tensor mine = x.local[mesh.rank()];
      norm(mine, move(mine.square().sum(-1) / 8, mesh["t"], kP, to), c.local[mesh.rank()]).backward();
    });
    EXPECT_EQ(is_close(to_global(gradients(x)), want), to == kR);
    EXPECT_EQ(refuses({"bsh,bs->bsh"}, {{shard(2)}, {to}}), to == kI);
  }
}

TEST(Trap, ABiasAddedOnEveryRankOfAPartialSum) {
  const at::Tensor b0 = random_tensor({6}, 3);
  const at::Tensor c = random_tensor({6, 6}, 4);
  const Pieces y = place(kX, kP);
  const Pieces b = leaf(b0, kI);
  Pieces naive = no_pieces(kThree, {{"t", kP}});
  Pieces typed = naive;
  on_mesh(kThree, [&](const Mesh& mesh) {
    const int r = mesh.rank();
    naive.local[r] = y.local[r] + b0;
    const at::Tensor sum = y.local[r] + move(b.local[r], mesh["t"], kI, kP);
    sum.backward(c);
    typed.local[r] = sum.detach();
    EXPECT_EQ(mesh["t"].comm().traffic().total_calls(), 0);
  });
  EXPECT_TRUE(is_close(to_global(naive), kX + 3 * b0));
  EXPECT_TRUE(is_close(to_global(typed), kX + b0));
  EXPECT_TRUE(is_close(to_global(gradients(b)), c.sum(0)));
  EXPECT_TRUE(refuses({"tn,n->tn", "", kSum}, {{kP}, {kR}}));
}

/// dp and tp both split dim 0, dp major: gathering dp first would permute the rows.
TEST(Trap, GatheringTheMajorAxisFirst) {
  const Axes axes{{"dp", 2}, {"tp", 3}};
  const at::Tensor x = random_tensor({6, 2}, 1);
  const Layout dp_major{{"dp", shard(0)}, {"tp", shard(0)}};
  const Layout tp_major{{"tp", shard(0)}, {"dp", shard(0)}};
  const Pieces a = from_global(axes, x, dp_major);
  const Pieces b = from_global(axes, x, tp_major);
  Pieces forced = no_pieces(axes, dp_major.moved("dp", kR));
  Pieces fsdp = no_pieces(axes, tp_major.moved("dp", kR));
  on_mesh(axes, [&](const Mesh& mesh) {
    const int r = mesh.rank();
    EXPECT_TRUE(is_refused([&] { redistribute(a.local[r], dp_major, mesh["dp"], kR); }));
    forced.local[r] = move(a.local[r], mesh["dp"], shard(0), kR);  // a layout that forgets tp
    fsdp.local[r] = redistribute(b.local[r], tp_major, mesh["dp"], kR);
  });
  EXPECT_FALSE(is_close(to_global(forced), x, 1e-3));
  EXPECT_TRUE(is_close(to_global(fsdp), x));
}

/// Keeping the data on (coordinate of another axis) mod n would spread the load, but the product of two such tensors
/// loses its gradient.
TEST(Trap, KeepingOnAnotherCoordinateForEachCoordinateOfAnotherAxis) {
  const Axes axes{{"o", 2}, {"t", 2}};
  const at::Tensor g0 = random_tensor({6, 6}, 5);
  Pieces kept = no_pieces(axes, {{"o", kR}, {"t", kP}});
  Pieces product = no_pieces(axes, {{"o", kP}, {"t", kP}});
  at::Tensor skewed = at::zeros_like(kX);
  const Pieces x = from_global(axes, kX, {{"o", kP}, {"t", kR}});
  on_mesh(axes, [&](const Mesh& mesh) {
    const at::Tensor g = move(g0, mesh["t"], kR, kP);
    EXPECT_EQ(g.abs().sum().item<double>() > 0, mesh["t"].coord() == 0);
    kept.local[mesh.rank()] = g;
    product.local[mesh.rank()] = x.local[mesh.rank()] * g;
  });
  for (int rank = 0; rank < 4; ++rank) {
    const int o = coord_of(axes, rank, "o");
    const int t = coord_of(axes, rank, "t");
    skewed += (o == t ? kX : 0 * kX) * (o != t ? g0 : 0 * g0);  // each sum over o is X, each over t is G
  }
  EXPECT_TRUE(is_close(to_global(kept), g0));
  EXPECT_TRUE(is_close(to_global(product), kX * g0));
  EXPECT_EQ(skewed.abs().max().item<double>(), 0);
}

TEST(Trap, FlatteningAShardedSequence) {
  const Axes axes{{"cp", 2}};
  const at::Tensor x = random_tensor({2, 4, 3}, 1);
  for (const int dim : {0, 1}) {
    Pieces flat = place(x, shard(dim), axes);
    for (at::Tensor& piece : flat.local) piece = piece.flatten(0, 1);
    flat.layout = {{"cp", shard(0)}};
    EXPECT_EQ(is_close(to_global(flat), x.flatten(0, 1)), dim == 0);
  }
}

TEST(Trap, TheOrderOfAHybridReductionCostsBytesOnly) {
  const Axes axes{{"rep", 2}, {"shard", 4}};
  const at::Tensor g0 = random_tensor({8, 8}, 1);
  const Layout partial{{"rep", kP}, {"shard", kP}};
  const Pieces g = from_global(axes, g0, partial);
  const Layout rest{{"rep", kI}, {"shard", shard(0)}};
  Pieces first = no_pieces(axes, rest);
  Pieces last = no_pieces(axes, rest);
  on_mesh(axes, [&](const Mesh& mesh) {
    const at::Tensor mine = g.local[mesh.rank()];
    const auto& rep = mesh["rep"].comm().traffic();
    const Layout scattered = partial.moved("shard", shard(0));
    first.local[mesh.rank()] =
        redistribute(redistribute(mine, partial, mesh["shard"], shard(0)), scattered, mesh["rep"], kI);
    const int64_t bytes = rep.total_bytes();
    const Layout reduced = partial.moved("rep", kI);
    last.local[mesh.rank()] =
        redistribute(redistribute(mine, partial, mesh["rep"], kI), reduced, mesh["shard"], shard(0));
    EXPECT_EQ(rep.total_bytes() - bytes, 4 * bytes);
  });
  EXPECT_TRUE(is_close(to_global(first), g0));
  EXPECT_TRUE(is_close(to_global(last), g0));
}

/// The verbs are closed under the law only with reduce: pull is a broadcast, its backward (push) a reduce; a pipeline
/// boundary is a send and a recv both ways.
TEST(Trap, EveryVerbHasItsBackward) {
  const Placement on_0 = Shard{0, {}, 0, 6};
  const Placement on_1 = Shard{0, {}, 1, 6};
  const Pieces w = leaf(kW, on_1);
  on_mesh(kThree, [&](const Mesh& mesh) {
    const auto& calls = mesh["t"].comm().traffic().calls;
    const auto count = [&](Verb verb) { return calls[static_cast<size_t>(verb)]; };
    const at::Tensor pulled = move(w.local[mesh.rank()], mesh["t"], on_1, kR);
    EXPECT_EQ(count(Verb::broadcast), 1);
    pulled.square().sum().backward();
    EXPECT_EQ(count(Verb::reduce), 1);
    const at::Tensor stage = from_global(kThree, kX, {{"t", on_0}}).local[mesh.rank()].requires_grad_();
    const at::Tensor next = move(stage, mesh["t"], on_0, on_1);
    EXPECT_EQ(count(Verb::send), mesh.rank() == 0);
    EXPECT_EQ(count(Verb::recv), mesh.rank() == 1);
    next.sum().backward();
    EXPECT_EQ(count(Verb::send), mesh.rank() < 2);
    EXPECT_EQ(count(Verb::recv), mesh.rank() < 2);
  });
}

TEST(Trap, AFrozenWeightCausesNoCollective) {
  const Axes axes{{"dp", 2}};
  on_mesh(axes, [](const Mesh& mesh) {
    for (const bool frozen : {false, true}) {
      const at::Tensor w = kW.clone().requires_grad_(!frozen);
      const at::Tensor x = kX.narrow(0, 3 * mesh.rank(), 3).clone().requires_grad_();
      const int64_t before = mesh["dp"].comm().traffic().total_calls();
      backward(x.matmul(move(w, mesh["dp"], kI, kR).t()).square().sum(), {{"dp", kP}});
      EXPECT_EQ(mesh["dp"].comm().traffic().total_calls() - before, frozen ? 0 : 1);
    }
  });
}

/// 2D lookup that moves activations, not the table: h over row, P over col; then row: S(2) -> S(0), col: P -> S(2).
TEST(Trap, EmbeddingCutIn2DNeedsNoGatherOfItsTable) {
  const Axes axes{{"row", 2}, {"col", 2}};
  const at::Tensor e0 = random_tensor({8, 4}, 1);
  const at::Tensor ids = at::arange(12).remainder(8).reshape({2, 6});
  const at::Tensor c = random_tensor({2, 6, 4}, 2);
  const at::Tensor want = gradient_of(e0, [&](const auto& e) { return (e.index({ids}) * c).sum(); });
  const Layout table{{"col", shard(0)}, {"row", shard(1)}};
  const Layout looked_up{{"row", shard(2)}, {"col", kP}};
  const Layout stream{{"row", shard(0)}, {"col", shard(2)}};
  const Pieces e = leaves(from_global(axes, e0, table));
  const Pieces g = from_global(axes, c, stream);
  Pieces y = no_pieces(axes, stream);
  on_mesh(axes, [&](const Mesh& mesh) {
    const int r = mesh.rank();
    const at::Tensor local = ids - 4 * mesh["col"].coord();
    const at::Tensor here = local.ge(0).logical_and(local.lt(4));
    at::Tensor x = e.local[r].index({local.clamp(0, 3)}) * here.unsqueeze(-1).to(at::kDouble);
    x = redistribute(x, looked_up, stream, mesh, "looked up");
    x.backward(g.local[r]);
    y.local[r] = x.detach();
  });
  EXPECT_TRUE(is_close(to_global(y), e0.index({ids})));
  EXPECT_TRUE(is_close(to_global(gradients(e)), want));
}

}  // namespace
}  // namespace caravan::testing::traps_test
