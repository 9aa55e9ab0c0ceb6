#include "caravan/nn/attention/attention.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/models/model.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::attention_test {
namespace {

using testing::distance;
using testing::error_of;
using ::testing::HasSubstr;
using testing::normal;

constexpr int64_t kBatch = 2, kLength = 12, kHeads = 4, kWidth = 8;

/// {q, k, v} of a whole sequence, in fp64, with gradients.
Tensors operands(int64_t kv_heads = 2) {
  Tensors all;
  for (const int64_t heads : {kHeads, kv_heads, kv_heads}) {
    all.push_back(normal({kBatch, kLength, heads, kWidth}, all.size()).to(at::kDouble).requires_grad_(true));
  }
  return all;
}

/// The plain formula. visible: [queries, keys] or [batch, 1, queries, keys].
at::Tensor formula(const Tensors& x, const at::Tensor& visible) {
  const int64_t group = x[0].size(2) / x[1].size(2);
  const at::Tensor q = x[0].transpose(1, 2);
  const at::Tensor k = x[1].transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor v = x[2].transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(kWidth));
  return at::matmul(at::softmax(scores.masked_fill(visible.logical_not(), -INFINITY), -1), v).transpose(1, 2);
}

/// Queries that are pieces of the sequence, as held by ranks of a context-parallel group: the last ones, one alone, a
/// zigzag, all in another order.
std::vector<at::Tensor> orders() {
  return {at::arange(7, kLength), at::tensor({4}, at::kLong),      at::tensor({0, 1, 2, 9, 10, 11}, at::kLong),
          at::arange(0, kLength), at::arange(kLength - 1, -1, -1), at::tensor({0, 1}, at::kLong)};
}

TEST(Attention, seesTheKeysUpToTheOneInOrder) {
  const at::Tensor causal = at::ones({kLength, kLength}, at::kBool).tril();
  for (const at::Tensor& order : orders()) {
    Tensors x = operands(), y = operands();
    AttentionCore core({});
    const at::Tensor out = core.run({x[0].index_select(1, order), x[1], x[2], order}, {}).front();
    const at::Tensor want = formula(y, causal).index_select(1, order);
    EXPECT_LT(distance(out, want), 1e-13) << order;
    const at::Tensor outer = normal(out.sizes().vec(), 7).to(at::kDouble);
    out.backward(outer);
    want.backward(outer);
    for (size_t i = 0; i < 3; ++i) EXPECT_LT(distance(x[i].grad(), y[i].grad()), 1e-13) << order << i;
  }
}

/// Packed texts: a query sees its own, also if its pieces are not next to each other.
TEST(Attention, staysWithinADocument) {
  const at::Tensor documents =
      at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 5, 5, 3, 3, 3, 3, 3, 3, 3, 5, 5, 5}, at::kLong)
          .view({kBatch, kLength});
  const at::Tensor causal = at::ones({kLength, kLength}, at::kBool).tril();
  const at::Tensor visible = documents.unsqueeze(2).eq(documents.unsqueeze(1)).logical_and(causal).unsqueeze(1);
  const ForwardContext context{.documents = documents};
  for (const double dropout : {0.0, 1e-12}) {  // the second takes the path for dropout
    AttentionCore core({.dropout = dropout});
    Tensors x = operands(), y = operands();
    const at::Tensor out = core.run({x[0], x[1], x[2]}, context).front();
    const at::Tensor want = formula(y, visible);
    EXPECT_LT(distance(out, want), 1e-7);
    out.backward(at::ones_like(out));
    want.backward(at::ones_like(want));
    for (size_t i = 0; i < 3; ++i) EXPECT_LT(distance(x[i].grad(), y[i].grad()), 1e-7) << i;
    for (const at::Tensor& order : orders()) {
      const Tensors piece{x[0].index_select(1, order), x[1], x[2], order};
      ForwardContext here = context;
      here.set_index(Dim::sequence, DimIndex::of(order, kLength));
      EXPECT_LT(distance(core.run(piece, here).front(), want.index_select(1, order)), 1e-7) << order;
    }
  }
}

TEST(Attention, ofAPieceDropsWhatTheWholeDrops) {
  AttentionCore core({.dropout = 0.4});
  const Tensors x = operands(4);
  const at::Tensor whole = core.run({x[0], x[1], x[2]}, {.seed = 3}).front();
  for (const at::Tensor& order : orders()) {
    ForwardContext context{.seed = 3};
    context.set_index(Dim::sequence, DimIndex::of(order, kLength));
    const at::Tensor out = core.run({x[0].index_select(1, order), x[1], x[2], order}, context).front();
    EXPECT_LT(distance(out, whole.index_select(1, order)), 1e-13) << order;
  }
  for (int64_t head = 0; head < kHeads; ++head) {
    ForwardContext context{.seed = 3};
    context.set_index(Dim::head, {head, 1, kHeads});
    const auto of_head = [&](const at::Tensor& t) { return t.narrow(2, head, 1); };
    EXPECT_LT(distance(core.run({of_head(x[0]), of_head(x[1]), of_head(x[2])}, context).front(), of_head(whole)),
              1e-13);
  }
}

TEST(Attention, needsTheWholeSequence) {
  AttentionCore core({});
  const Tensors x = operands();
  ForwardContext piece;
  piece.set(Dim::sequence, {0, kLength, 2 * kLength});
  EXPECT_THAT(error_of<ShapeError>([&] {
                core.run({x[0], x[1], x[2]}, piece);
              }),
              HasSubstr("12 keys of a sequence of 24 for 12 queries"));
  EXPECT_THROW(core.run({x[0], x[1], x[2], at::arange(kLength)}, piece), ShapeError);
  EXPECT_THROW(core.run({x[0].narrow(1, 0, 3), x[1], x[2]}, {}), ShapeError);
  EXPECT_THROW(core.run({x[0].narrow(2, 0, 3), x[1], x[2]}, {}), ShapeError);
  EXPECT_THAT(error_of<ShapeError>([&] {
                core.run({x[0], x[1], x[2], at::arange(1, kLength + 1)}, {});
              }),
              HasSubstr("queries have the keys 1 to 12 of 12"));
  EXPECT_THROW(core.run({x[0], x[1], x[2], at::arange(3)}, {}), ShapeError);
  EXPECT_THROW(core.run({x[0], x[1], x[2]}, {.documents = at::zeros({kBatch, 3}, at::kLong)}), ShapeError);
}

class Positions : public ::testing::TestWithParam<Architecture> {};

/// Texts packed into one row, with positions and documents, give the same as separate texts.
TEST_P(Positions, andDocumentsSeparatePackedTexts) {
  const ModelConfig config = testing::tiny_config(GetParam());
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(1, 12, config.vocabulary);
  const at::Tensor labels = testing::tokens(1, 12, config.vocabulary, 1);
  const std::vector<std::pair<int64_t, int64_t>> texts{{0, 5}, {5, 4}, {9, 3}};
  NamedTensors want;
  std::vector<at::Tensor> positions, documents;
  for (const auto& [first, count] : texts) {
    model->run({ids.narrow(1, first, count), labels.narrow(1, first, count)}, {}).front().backward();
    positions.push_back(at::arange(count));
    documents.push_back(at::full({count}, first, at::kLong));
  }
  for (const auto& [name, gradient] : testing::gradients(*model)) want.emplace_back(name, gradient.clone());
  for (Parameter* parameter : model->parameters()) parameter->unsharded().mutable_grad() = at::Tensor();

  for (const bool of_each_row : {false, true}) {
    ForwardContext packed{.positions = at::cat(positions), .documents = at::cat(documents).unsqueeze(0)};
    if (of_each_row) packed.positions = packed.positions.unsqueeze(0);
    const at::Tensor logits = model->run({ids}, packed).front();
    for (const auto& [first, count] : texts) {
      const at::Tensor alone = model->run({ids.narrow(1, first, count)}, {}).front();
      EXPECT_LT(distance(logits.narrow(1, first, count), alone), 2e-6);
    }
    model->run({ids, labels}, packed).front().backward();
    const NamedTensors ours = testing::gradients(*model);
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i].first.ends_with("key.bias")) continue;  // zero apart from rounding
      EXPECT_LT(distance(ours[i].second, want[i].second), 4e-6) << want[i].first;
    }
    for (Parameter* parameter : model->parameters()) parameter->unsharded().mutable_grad() = at::Tensor();
  }
}

TEST_P(Positions, ofOtherTokensAreRefused) {
  const ModelConfig config = testing::tiny_config(GetParam());
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(2, 5, config.vocabulary);
  EXPECT_THAT(error_of<ShapeError>([&] { model->run({ids}, {.positions = at::arange(4)}); }),
              HasSubstr("positions [4] of tokens [2, 5]"));
  EXPECT_THAT(error_of<UsageError>([&] { model->run({ids}, {.positions = at::arange(9, 14)}); }),
              HasSubstr("14 positions, but the model's context is 13"));
  EXPECT_THROW(model->run({ids}, {.positions = at::arange(-1, 4)}), DataError);
  ForwardContext piece;
  piece.set(Dim::sequence, {5, 5, 10});
  EXPECT_THAT(error_of<ShapeError>([&] { model->run({ids}, piece); }),
              HasSubstr("the tokens are a piece of a sequence"));
}

INSTANTIATE_TEST_SUITE_P(, Positions, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::attention_test
