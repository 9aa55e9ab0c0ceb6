/// Dtypes, empty and tiny tensors, aliasing, and error messages.

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/laws.h"

namespace caravan::testing::edges_test {
namespace {

using ::testing::HasSubstr;

const Placement kR = Replicate{};
const Placement kI = Invariant{};
const Placement kP = Partial{};

/// Small integers: exact in every dtype, and so are their sums.
at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return (at::arange(count) % (type == at::kBool ? 2 : 7)).reshape(shape).to(type);
}

TEST(Edges, EveryDtypeThroughEveryCell) {
  const Axes axes{{"t", 3}};
  auto placements = placements_for(3, {6, 6});
  for (const Placement& blocked : blocked_for(3, {6, 6})) placements.push_back(blocked);
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kBool}) {
    const at::Tensor x = numbers({6, 6}, type);
    std::vector<Pieces> results;
    on_mesh(axes, [&](const Mesh& mesh) {
      size_t i = 0;
      for (const Placement& from : placements) {
        for (const Placement& to : placements) {
          if (type == at::kBool && from.is_partial()) continue;  // booleans have no sum
          if (mesh.rank() == 0) results.push_back(no_pieces(axes, {{"t", to}}));
          mesh.world().barrier();
          at::Tensor local = from.is_partial() ? (mesh.rank() == 1 ? x : at::zeros_like(x))
                                               : from_global(axes, x, {{"t", from}}).local[mesh.rank()];
          results[i++].local[mesh.rank()] = redistribute(local, {{"t", from}}, mesh["t"], to);
          mesh.world().barrier();
        }
      }
    });
    for (const Pieces& result : results) {
      EXPECT_EQ(result.local[0].scalar_type(), type);
      if (type == at::kBool && result.layout["t"].is_partial()) continue;
      EXPECT_TRUE(is_close(try_to_global(result), x, 0)) << result.layout.to_string() << " " << at::toString(type);
    }
  }
}

TEST(Edges, TensorsWithoutDimsOrWithoutElements) {
  on_mesh({{"t", 3}}, [](const Mesh& mesh) {
    const MeshAxis& t = mesh["t"];
    const at::Tensor one = at::ones({}, at::kDouble).requires_grad_();
    for (const Placement& from : {kR, kI, kP}) {
      for (const Placement& to : {kR, kI, kP}) {
        const at::Tensor y = redistribute(one, {{"t", from}}, t, to);
        EXPECT_EQ(y.dim(), 0);
        const double want = from == to ? 1 : from.is_partial() ? 3 : to.is_partial() ? t.coord() == 0 : 1;
        EXPECT_EQ(y.item<double>(), want);
        y.backward();
      }
    }
    EXPECT_TRUE(is_refused([&] { redistribute(one, {{"t", kR}}, t, Shard{0}); }));
    const std::vector<int64_t> none{0, 3};
    for (const Placement& from : {kR, kI, kP, Placement(Shard{0}), Placement(Shard{1}), Placement(Shard{0, {0, 0, 0}}),
                                  Placement(Shard{0, {}, 1, 0}), Placement(Shard{.dim = 0, .blocks = 2})}) {
      for (const Placement& to :
           {kR, kI, kP, Placement(Shard{0}), Placement(Shard{1}), Placement(Shard{0, {0, 0, 0}}),
            Placement(Shard{0, {}, 2, 0}), Placement(Shard{.dim = 0, .sizes = {0, 0, 0}, .blocks = 3})}) {
        const auto shape = local_shape(none, {{"t", from}}, mesh);
        const at::Tensor x = at::ones(shape, at::kFloat).requires_grad_();
        const at::Tensor y = redistribute(x, {{"t", from}}, t, to);
        EXPECT_EQ(y.sizes(), at::IntArrayRef(local_shape(none, {{"t", to}}, mesh)));
        y.sum().backward();
        EXPECT_EQ(x.grad().sizes(), x.sizes());
      }
    }
  });
}

TEST(Edges, NothingToDoIsXItself) {
  on_mesh({{"t", 2}, {"one", 1}}, [](const Mesh& mesh) {
    const at::Tensor x = at::ones({4, 4}).requires_grad_();
    const Layout layout{{"one", Shard{0}}, {"t", kI}};
    for (const Placement& to : {kR, kI, kP, Placement(Shard{0}), Placement(Shard{1})}) {
      EXPECT_TRUE(redistribute(x, layout, mesh["one"], to).is_same(x));
    }
    EXPECT_TRUE(redistribute(x, layout, mesh["t"], kI).is_same(x));
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(redistribute(x, layout, mesh["t"], kR).is_same(x));  // under no_grad R and I are the same
    EXPECT_TRUE(redistribute(x, layout, mesh["t"], Shard{1}).is_alias_of(x));
    EXPECT_EQ(mesh.bytes_sent(), 0);
  });
}

TEST(Edges, NoGraphWhereNothingNeedsAGradient) {
  on_mesh({{"t", 2}}, [](const Mesh& mesh) {
    EXPECT_FALSE(redistribute(at::ones({4}), {{"t", kP}}, mesh["t"], kR).requires_grad());
    EXPECT_TRUE(redistribute(at::ones({4}).requires_grad_(), {{"t", kI}}, mesh["t"], kR).requires_grad());
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(redistribute(at::ones({4}).requires_grad_(), {{"t", kP}}, mesh["t"], kR).requires_grad());
  });
}

// ---- error messages ----

class Refused : public ::testing::Test {
 protected:
  Mesh mesh_ = Mesh::create(make_record_world(5, 12), {{"dp", 2}, {"pp", 2}, {"tp", 3}});
  const MeshAxis& tp_ = mesh_["tp"];

  template <typename E>
  std::string message(const at::Tensor& x, const Layout& layout, const Placement& to, const Call& call = {}) {
    return message_of<E>([&] { redistribute(x, layout, tp_, to, call); });
  }
};

TEST_F(Refused, ADimThatDoesNotDivide) {
  const std::string text = message<ShapeError>(at::empty({4096, 1000}, at::kMeta), {{"dp", kI}, {"tp", kR}}, Shard{1},
                                               "blocks.7.mlp.up.weight");
  EXPECT_THAT(
      text,
      HasSubstr(
          "[redistribute] blocks.7.mlp.up.weight [4096, 1000]: dim 1 has 1000 elements, not divisible by axis tp (3)"));
  EXPECT_THAT(text, HasSubstr("where: rank 5 of 12 (dp=0 pp=1 tp=2), layout dp=I tp=R, called at edges_test.cpp:"));
  EXPECT_THAT(text, HasSubstr("do: pad the dim to 1002, or choose tp from {1, 2, 4, 5, 8, 10}"));
}

TEST_F(Refused, SizesThatDoNotFit) {
  const at::Tensor x = at::ones({7, 2});
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{0, {1, 2, 3}}),
              HasSubstr("dim 0 has 7 elements, S(0; 1 2 3) places 6"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{0, {3, 4}}),
              HasSubstr("has 2 sizes, axis tp has 3 coordinates"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", Shard{0, {1, 2, 3}}}}, kR),
              HasSubstr("dim 0 has 7 elements, but S(0; 1 2 3) gives coordinate 2 of axis tp 3"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{0, {}, 3}), HasSubstr("choose an owner from 0 to 2"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{0, {}, 1, 6}), HasSubstr("S(0; on 1) places 6"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", Shard{0, {}, 2}}}, kR),
              HasSubstr("give the number in the layout: Shard{.dim, .owner, .rows}"));
}

TEST_F(Refused, BlocksThatDoNotFit) {
  const at::Tensor x = at::ones({12, 2});
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{.dim = 0, .blocks = 5}),
              HasSubstr("dim 0 has 12 elements, not divisible by the 5 blocks of S(0; blocks 5)"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{.dim = 0, .blocks = 3}),
              HasSubstr("each of the 3 blocks of dim 0 has 4 elements, not divisible by axis tp (3)"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", kR}}, Shard{.dim = 0, .sizes = {1, 2, 3}, .blocks = 3}),
              HasSubstr("dim 0 has 12 elements, S(0; 1 2 3; blocks 3) places 18"));
  EXPECT_THAT(message<ShapeError>(x, {{"tp", Shard{.dim = 0, .sizes = {1, 2, 3}, .blocks = 3}}}, kR),
              HasSubstr("dim 0 has 12 elements, but S(0; 1 2 3; blocks 3) gives coordinate 2 of axis tp 9"));
  EXPECT_THAT(message<ShapeError>(at::ones({4}), {{"tp", Shard{.dim = 0, .blocks = 8}}}, kR),
              HasSubstr("not divisible by the 8 blocks"));
}

TEST_F(Refused, MissingDims) {
  EXPECT_THAT(message<LayoutError>(at::ones({6, 6}), {{"tp", kR}}, Shard{2}), HasSubstr("choose a dim from 0 to 1"));
  EXPECT_THAT(message<LayoutError>(at::ones({6, 6}), {{"tp", Shard{2}}}, kR),
              HasSubstr("S(2) on axis tp, but there are 2 dims"));
  EXPECT_TRUE(is_refused([] { Placement(Shard{-1}); }));
}

TEST_F(Refused, AnAxisThatIsNotMinorOrNotPlaced) {
  EXPECT_THAT(message<LayoutError>(at::ones({6, 6}), {{"tp", Shard{0}}, {"dp", Shard{0}}}, kR),
              HasSubstr("axis tp is not the minor axis of dim 0, axis dp is: leaving it would permute the rows"));
  EXPECT_THAT(message<LayoutError>(at::ones({6, 6}), {{"dp", Shard{0}}}, kR),
              HasSubstr("the layout has no placement for axis tp"));
  // Typing does not depend on sizes: an error on two ranks is an error on one.
  const Mesh one = Mesh::create(make_record_world(0, 1), {{"dp", 1}, {"tp", 1}});
  EXPECT_TRUE(is_refused([&] { redistribute(at::ones({6}), {{"tp", Shard{0}}, {"dp", Shard{0}}}, one["tp"], kR); }));
}

TEST_F(Refused, AnInvalidLoss) {
  EXPECT_THAT(message_of<ShapeError>([] {
                backward(at::ones({2}).requires_grad_(), {{"tp", kI}});
              }),
              HasSubstr("loss [2]: has 2 elements"));
  EXPECT_THAT(message_of<UsageError>([] { backward(at::ones({}), {{"tp", kI}}); }), HasSubstr("requires no gradient"));
  const std::string text = message_of<LayoutError>([] {
    backward(at::ones({}).requires_grad_(), {{"dp", kP}, {"tp", kR}});
  });
  EXPECT_THAT(text, HasSubstr("is R on axis tp: with 1 on every rank it would count once per rank"));
  EXPECT_THAT(text, HasSubstr("redistribute tp R -> I"));
}

TEST(Refusals, NothingIsSentForBadInput) {
  on_mesh({{"t", 2}}, [](const Mesh& mesh) {
    EXPECT_THROW(redistribute(at::ones({3}), {{"t", kP}}, mesh["t"], Shard{0}), ShapeError);
    EXPECT_THROW(redistribute(at::empty({4}, at::kMeta), {{"t", kP}}, mesh["t"], kR), UsageError);
    EXPECT_THROW(redistribute(at::ones({4}, at::kBool), {{"t", kP}}, mesh["t"], kR), UsageError);
    EXPECT_EQ(mesh["t"].comm().traffic().total_calls(), 0);
  });
}

/// Errors name the tensor and the caller's line, in forward and in backward.
TEST(Refusals, ACallThatRanksDisagreeOnNamesTheTensorAndTheLine) {
  const auto disagree = [](bool in_backward) {
    return message_of<CommError>([&] {
      on_mesh({{"t", 2}}, [&](const Mesh& mesh) {
        const at::Tensor x = at::ones({4}).requires_grad_();
        if (in_backward) {
          const Placement to = mesh.rank() == 0 ? kR : Placement(Shard{0});
          redistribute(x, {{"t", kI}}, mesh["t"], to, "norm.weight").sum().backward();
        } else {
          redistribute(x, {{"t", kP}}, mesh["t"], mesh.rank() == 0 ? kR : Placement(Shard{0}), "norm.weight");
        }
      });
    });
  };
  EXPECT_THAT(disagree(false), HasSubstr("norm.weight"));
  EXPECT_THAT(disagree(false), HasSubstr("edges_test.cpp"));
  EXPECT_THAT(disagree(true), HasSubstr("gradient of norm.weight"));
  EXPECT_THAT(disagree(true), HasSubstr("edges_test.cpp"));
}

}  // namespace
}  // namespace caravan::testing::edges_test
