#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/global/global.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::index_rules_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = std::function<Tensors(const Tensors&)>;

at::Tensor whole(const at::Tensor& tensor) { return is_global(tensor) ? full(tensor) : tensor; }

/// All placements of one operand, the others whole; then all operands cut along the same dim.
std::vector<std::vector<Layout>> placements(const Tensors& operands) {
  std::vector<std::vector<Layout>> all;
  const Layout whole = {{"x", Replicate{}}};
  for (size_t i = 0; i < operands.size(); ++i) {
    for (int dim = 0; dim < operands[i].dim(); ++dim) {
      all.emplace_back(operands.size(), whole);
      all.back()[i] = {{"x", Shard{dim}}};
    }
    if (!operands[i].is_floating_point()) continue;
    all.emplace_back(operands.size(), whole);
    all.back()[i] = {{"x", Partial{}}};
  }
  for (int dim = 0; dim < 3; ++dim) {
    all.emplace_back();
    for (const at::Tensor& operand : operands) {
      all.back().push_back(dim < operand.dim() ? Layout({{"x", Shard{dim}}}) : whole);
    }
  }
  return all;
}

/// A sum is one of random summands, so that an op that is not linear is noticed.
at::Tensor placed(const at::Tensor& x, const Layout& layout, const GlobalContext& context) {
  if (!layout["x"].is_partial()) return distribute(x.clone(), layout, context);
  const Axes axes{{"x", context.mesh()["x"].size()}};
  return global(from_global(axes, x, layout, 5).local[context.mesh().rank()], layout, context);
}

/// The op on global tensors gives what it gives on whole ones. 2 ranks, and 3, which share 4 and 5 rows unevenly.
void check(const Tensors& operands, const Op& op) {
  Tensors copies;
  for (const at::Tensor& operand : operands) copies.push_back(operand.clone());
  const Tensors expected = op(copies);
  for (const int n : {2, 3}) {
    for (const std::vector<Layout>& layouts : placements(operands)) {
      std::string text = std::to_string(n) + " ranks:";
      for (const Layout& layout : layouts) text += " " + layout.to_string();
      SCOPED_TRACE(text);
      on_mesh({{"x", n}}, [&](const Mesh& mesh) {
        const GlobalContext context(mesh);
        Tensors inputs;
        for (size_t i = 0; i < operands.size(); ++i) inputs.push_back(placed(operands[i], layouts[i], context));
        const Tensors outputs = op(inputs);
        ASSERT_EQ(outputs.size(), expected.size());
        for (size_t i = 0; i < outputs.size(); ++i) {
          const at::Tensor got = whole(outputs[i]);
          ASSERT_EQ(got.sizes(), expected[i].sizes()) << "output " << i;
          EXPECT_TRUE(is_close(got.to(at::kDouble), expected[i].to(at::kDouble), 1e-12)) << "output " << i;
        }
      });
    }
  }
}

at::Tensor ints(std::vector<int64_t> values, at::IntArrayRef sizes) {
  return at::tensor(values, at::kLong).reshape(sizes).clone();
}

at::Tensor table() { return random_tensor({5, 4}, 1); }
at::Tensor index() { return ints({4, 0, 2, 2, 1, 3, 0, 0}, {2, 4}); }

TEST(IndexRules, Rows) {
  check({table(), ints({4, 0, 2, 0}, {4}), random_tensor({4, 4}, 2)}, [](const Tensors& x) -> Tensors {
    return {x[0].index_add(0, x[1], x[2], 0.5), x[0].clone().index_add_(0, x[1], x[2]), x[0].index_select(0, x[1])};
  });
  check({table(), ints({4, 0, 2, 1}, {4}), random_tensor({4, 4}, 2)}, [](const Tensors& x) -> Tensors {
    return {x[0].index_copy(0, x[1], x[2]), x[0].index_reduce(0, x[1], x[2], "amax"), x[0].index_fill(0, x[1], 2.0),
            x[0].clone().index_copy_(0, x[1], x[2])};
  });
}
TEST(IndexRules, ScatterReduce) {
  check({table(), index(), random_tensor({2, 4}, 2)}, [](const Tensors& x) -> Tensors {
    return {at::scatter_reduce(x[0], 0, x[1], x[2], "sum"), at::scatter_reduce(x[0], 0, x[1], x[2], "sum", false),
            at::scatter_reduce(x[0], 0, x[1], x[2], "amax"), at::scatter(x[0], 0, x[1].clone(), 3.0, "multiply"),
            x[0].clone().scatter_add_(0, x[1], x[2])};
  });
  // An index that is shorter than self along other dims.
  check({table(), ints({4, 0, 2, 1}, {2, 2}), random_tensor({3, 4}, 2)}, [](const Tensors& x) -> Tensors {
    return {x[0].scatter_add(0, x[1], x[2]), x[0].gather(0, x[1])};
  });
}
TEST(IndexRules, AdvancedIndexing) {
  using c10::List;
  const auto list = [](std::vector<std::optional<at::Tensor>> each) {
    List<std::optional<at::Tensor>> all;
    for (auto& tensor : each) all.push_back(std::move(tensor));
    return all;
  };
  check({random_tensor({5, 4, 3}, 1), ints({4, -1, 2, 2}, {2, 2}), ints({1, 0}, {2})},
        [&](const Tensors& x) -> Tensors {
          return {at::index(x[0], list({x[1]})), at::index(x[0], list({std::nullopt, x[2]})),
                  at::index(x[0], list({x[1], x[2]})), at::index(x[0], list({x[1], std::nullopt, x[2]}))};
        });
  check({random_tensor({5, 4, 3}, 1), ints({4, -1, 2, 2}, {4}), random_tensor({4, 4, 3}, 3)},
        [&](const Tensors& x) -> Tensors {
          return {at::index_put(x[0], list({x[1]}), x[2], true), x[0].clone().index_put_(list({x[1]}), x[2], true),
                  at::index_put(x[0], list({x[1]}), at::scalar_tensor(2.0, at::kDouble), true)};
        });
  const at::Tensor mask = random_tensor({5, 4}, 9).gt(0);
  check({random_tensor({5, 4, 3}, 1), mask}, [&](const Tensors& x) -> Tensors {
    return {at::index(x[0], list({x[1]})), at::masked_select(x[0], x[1].unsqueeze(-1))};
  });
  check({table(), mask}, [&](const Tensors& x) -> Tensors {
    return {at::index_put(x[0], list({x[1]}), at::scalar_tensor(2.0, at::kDouble))};
  });
}
TEST(IndexRules, TakeAndPut) {
  check({table(), index(), random_tensor({2, 4}, 2)}, [](const Tensors& x) -> Tensors {
    return {at::take(x[0], x[1]), at::put(x[0], x[1], x[2], true), at::take_along_dim(x[0], x[1], 0)};
  });
}
TEST(IndexRules, SortedBoundaries) {
  const at::Tensor sorted = std::get<0>(table().sort(-1));
  check({sorted, random_tensor({5, 3}, 4)}, [](const Tensors& x) -> Tensors {
    return {at::searchsorted(x[0], x[1]), at::searchsorted(x[0].select(0, 1), x[1])};
  });
  check({index(), ints({2, 4, 7}, {3})}, [](const Tensors& x) -> Tensors {
    return {at::isin(x[0], x[1]), at::isin(x[0], 2), at::bucketize(x[0], x[1])};
  });
}
TEST(IndexRules, Bags) {
  for (const int64_t mode : {0, 1, 2}) {
    check({table(), ints({4, 0, 2, 2, 1}, {5}), ints({0, 2}, {2})}, [mode](const Tensors& x) -> Tensors {
      const auto [output, bags, sizes, argmax] = at::_embedding_bag(x[0], x[1], x[2], false, mode);
      return {output, bags, sizes,
              at::_embedding_bag_dense_backward(output.mul(2), x[1], bags, sizes, argmax, 5, false, mode, {})};
    });
  }
}
TEST(IndexRules, Extremes) {
  check({table()}, [](const Tensors& x) -> Tensors {
    const auto [max, at_max] = x[0].max(0);
    const auto [low, high] = x[0].aminmax(0, true);
    return {max,
            at_max,
            x[0].argmin(0, true),
            low,
            high,
            x[0].argmax(),
            at::count_nonzero(x[0], at::IntArrayRef({0, 1})),
            x[0].prod(0),
            at::var(x[0], at::OptionalIntArrayRef(0), at::Scalar(2.0)),
            at::std(x[0], at::OptionalIntArrayRef({0, 1}), at::Scalar(3.0), true),
            x[0].gt(0.9).any(),
            at::trace(x[0])};
  });
}
TEST(IndexRules, FirstOfEqualMaximaAndNan) {
  on_mesh({{"x", 2}}, [](const Mesh& mesh) {
    const GlobalContext context(mesh);
    at::Tensor x = random_tensor({4, 3}, 1);
    x[1][2] = 2;
    x[3][2] = 2;
    x[2][1] = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor spread = distribute(x, {{"x", Shard{0}}}, context);
    const auto [max, at_max] = spread.max(0);
    EXPECT_TRUE(at::allclose(whole(max), std::get<0>(x.max(0)), 0, 0, true));
    EXPECT_TRUE(at::equal(whole(at_max), std::get<1>(x.max(0))));
    EXPECT_TRUE(at::allclose(whole(spread.amin(0)), x.amin(0), 0, 0, true));
    EXPECT_TRUE(context.whole_ops().empty());
  });
}
TEST(IndexRules, SizesInPlace) {
  check({random_tensor({4, 1, 5}, 1)}, [](const Tensors& x) -> Tensors {
    at::Tensor transposed = x[0].clone();
    const at::Tensor copy = transposed.detach();
    transposed.transpose_(0, 2);
    at::Tensor squeezed = x[0].clone();
    squeezed.squeeze_();
    at::Tensor unsqueezed = x[0].clone();
    unsqueezed.unsqueeze_(1).mul_(2);
    return {transposed, copy, squeezed, unsqueezed, transposed.sum(0), squeezed.t_()};
  });
}
TEST(IndexRules, Shuffles) {
  check({random_tensor({2, 8, 4, 2}, 1)}, [](const Tensors& x) -> Tensors {
    return {at::pixel_shuffle(x[0], 2).sum({2, 3}),
            at::pixel_unshuffle(x[0], 2).sum({2, 3}),
            at::channel_shuffle(x[0], 4),
            at::rot90(x[0], 1, {1, 2}),
            x[0].unfold(1, 3, 2),
            at::diagonal(x[0], 1, 1, 2)};
  });
}

// ---- a vocabulary that is cut ----

struct Looked {
  at::Tensor rows, gradient;
};

Looked look_up(const at::Tensor& weight, const at::Tensor& tokens, const at::Tensor& scale) {
  const at::Tensor rows = at::embedding(weight, tokens);
  rows.mul(scale).sum().backward();
  return {rows, weight.grad()};
}

TEST(IndexRules, VocabularyParallelEmbedding) {
  const at::Tensor values = random_tensor({7, 4}, 1);
  const at::Tensor tokens = ints({6, 0, 3, 3, 5, 2, 1, 6, 4, 4}, {2, 5});
  const at::Tensor scale = random_tensor({2, 5, 4}, 2);
  const Looked alone = look_up(values.clone().requires_grad_(), tokens, scale);
  for (const int n : {2, 3}) {  // 4 + 3 and 3 + 2 + 2 rows
    on_mesh({{"tp", n}}, [&](const Mesh& mesh) {
      const GlobalContext context(mesh, {.is_strict = true});
      const at::Tensor weight = distribute(values.clone(), {{"tp", Shard{0}}}, context).requires_grad_();
      const Looked spread = look_up(weight, distribute(tokens, {}, context), distribute(scale, {}, context));
      EXPECT_TRUE(layout(spread.rows)["tp"].is_partial()) << layout(spread.rows).to_string();
      EXPECT_TRUE(is_close(full(spread.rows.detach()), alone.rows.detach(), 1e-12));
      EXPECT_TRUE(is_close(full(spread.gradient), alone.gradient, 1e-12));
      EXPECT_EQ(context.report(), "");
    });
  }
}
TEST(IndexRules, ShardedTableOfShardedTokensIsGathered) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor weight = distribute(table(), {{"dp", Shard{0}}}, context);
    const at::Tensor rows = at::embedding(weight, distribute(index(), {{"dp", Shard{1}}}, context));
    EXPECT_TRUE(is_close(full(rows), at::embedding(table(), index()), 1e-12));
  });
}
TEST(IndexRules, TokenOutOfRangeIsRefusedOnEveryRank) {
  on_mesh({{"tp", 2}}, [](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor weight = distribute(table(), {{"tp", Shard{0}}}, context);
    EXPECT_THROW(at::embedding(weight, ints({5}, {1})), c10::Error);
    EXPECT_THROW(at::embedding(weight, ints({-1}, {1})), c10::Error);
  });
}

// ---- refusals ----

TEST(IndexRules, MemoryOfAGlobalTensorIsRefused) {
  on_mesh({{"x", 2}}, [](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor x = distribute(table(), {{"x", Shard{0}}}, context);
    const auto message = [](const std::function<void()>& body) { return message_of<UsageError>(body); };
    const std::string strided = message([&] { (void)x.as_strided({2, 2}, {1, 1}); });
    EXPECT_NE(strided.find("[global] aten::as_strided: strides describe one memory"), std::string::npos) << strided;
    EXPECT_NE(strided.find("do: use view, transpose, slice, diagonal or unfold"), std::string::npos) << strided;
    const std::string resized = message([&] { (void)x.resize_({3, 4}); });
    EXPECT_NE(resized.find("would change the number of rows that each rank holds"), std::string::npos) << resized;
    EXPECT_NE(resized.find("make a new tensor"), std::string::npos) << resized;
    const std::string set = message([&] { x.set_(table()); });
    EXPECT_NE(set.find("has no storage of its own"), std::string::npos) << set;
    x.resize_({5, 4});
    EXPECT_TRUE(is_close(full(x), table(), 1e-12));
  });
}

}  // namespace
}  // namespace caravan::testing::index_rules_test
