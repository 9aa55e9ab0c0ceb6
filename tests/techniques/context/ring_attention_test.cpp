#include "caravan/techniques/context/ring_attention.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/comm/record.h"
#include "caravan/comm/tensor.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/attention/attention.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/techniques/context/striped.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/context/gradients_before_keys.h"

namespace caravan::testing::ring_attention_test {
namespace {

constexpr int64_t kRows = 2, kLength = 24, kHeads = 4, kWidth = 8;

// ---- who computes what ----

TEST(ZigzagOrder, GivesEachCoordinateAnEarlyAndALateChunk) {
  const std::vector<DimIndex::Run> runs{{0, 2}, {10, 2}, {2, 2}, {8, 2}, {4, 4}};  // 4 5 and 6 7 are one run
  EXPECT_EQ(zigzag_order(12, 3), DimIndex(runs, 12));
  EXPECT_EQ(zigzag_order(12, 3).slice(4, 4, 12), DimIndex({{2, 2}, {8, 2}}, 12));
  EXPECT_EQ(zigzag_order(7, 1), DimIndex(0, 7, 7));
}

TEST(ZigzagOrder, RefusesALengthThatDoesNotSplit) {
  const std::string text = message_of<ShapeError>([] { zigzag_order(13, 3); });
  EXPECT_NE(text.find("13 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("12 or 18"), std::string::npos) << text;
  EXPECT_NE(message_of<ShapeError>([] { zigzag_order(5, 4); }).find("use 8 tokens"), std::string::npos);
}

/// Every pair of a query and a key that it sees is computed once, on the rank of the query; every rank computes as many
/// as the others in every turn.
TEST(RingPart, CoversTheCausalPairsOnceInEqualParts) {
  for (int n = 1; n <= 5; ++n) {
    const int64_t local = 4, length = local * n;
    const at::Tensor order = zigzag_order(length, n).indices(length);
    at::Tensor times = at::zeros({length, length}, at::kLong);
    for (int turn = 0; turn < n; ++turn) {
      std::vector<int64_t> products;
      for (int coord = 0; coord < n; ++coord) {
        const RingPart part = zigzag_part(coord, turn, n, local);
        products.push_back(0);
        for (int64_t q = 0; q < part.num_queries; ++q) {
          for (int64_t k = 0; k < (part.is_causal ? q + 1 : part.num_keys); ++k) {
            const auto query = order[coord * local + part.first_query + q].item<int64_t>();
            const auto key = order[part.from * local + k].item<int64_t>();
            times[query][key] += 1;
            ++products.back();
          }
        }
      }
      EXPECT_EQ(products, std::vector<int64_t>(n, turn == 0 ? local * (local + 1) / 2 : local * local / 2));
    }
    EXPECT_TRUE(times.equal(at::ones_like(times).tril())) << n;
  }
}

// ---- against one process ----

struct Case {
  int n = 2;
  int64_t kv_heads = kHeads;
  bool has_documents = false;
  double dropout = 0;
  at::ScalarType type = at::kDouble;
  bool overlaps = true;
  int64_t width = kWidth;
  RingSchedule schedule = checked_ring_schedule;
};

/// Documents of 1 to 9 tokens, others in each row.
at::Tensor some_documents() {
  at::Tensor documents = at::empty({kRows, kLength}, at::kLong);
  for (int64_t row = 0; row < kRows; ++row) {
    int64_t document = 0, left = 3 + row;
    for (int64_t t = 0; t < kLength; ++t) {
      if (left-- == 0) left = (5 * ++document + 3 * row) % 9;
      documents[row][t] = document;
    }
  }
  return documents;
}

struct Found {
  at::Tensor out;
  std::array<at::Tensor, 3> gradients;
};

/// The tokens of a rank out of those of all ranks, in the order of the text.
struct Slots {
  Slots(int n, int coord) {
    const DimIndex order = zigzag_order(kLength, n);
    count = kLength / n;
    index = order.slice(coord * count, count, kLength);
    tokens = index.indices(count);
  }
  int64_t count;
  DimIndex index;
  at::Tensor tokens;
};

/// Returns out and the gradients of (out * gradient).sum() for coordinate `coord` of `n`.
Found run(const Case& what, const MeshAxis& axis, bool with_ring) {
  const int n = with_ring ? axis.size() : 1;
  const Slots slots(n, with_ring ? axis.coord() : 0);
  AttentionCore core({.dropout = what.dropout});
  Hook hook;
  if (with_ring) hook = core.add_hook(ring_attention(axis, what.schedule));
  axis.deferred().set_overlaps(what.overlaps);
  ForwardContext context{.seed = 3, .step = 5};
  context.set(Dim::sequence, slots.index);
  if (what.has_documents) context.documents = some_documents().index_select(1, slots.tokens);
  Tensors inputs;
  for (const int64_t heads : {kHeads, what.kv_heads, what.kv_heads}) {
    const at::Tensor whole = random_tensor({kRows, kLength, heads, what.width}, 11 + inputs.size());
    inputs.push_back(whole.index_select(1, slots.tokens).to(what.type).requires_grad_());
  }
  Found found{.out = core.run(inputs, context).front(), .gradients = {}};
  const at::Tensor gradient = random_tensor({kRows, kLength, kHeads, what.width}, 17).index_select(1, slots.tokens);
  found.out.backward(gradient.to(what.type));
  for (size_t i = 0; i < 3; ++i) found.gradients[i] = inputs[i].grad();
  return found;
}

void expect_one_process(const Case& what, double tolerance) {
  on_mesh({{"cp", what.n}}, [&](const Mesh& mesh) {
    const MeshAxis& axis = mesh["cp"];
    const Found want = run(what, axis, false);
    const Found got = run(what, axis, true);
    const Slots slots(axis.size(), axis.coord());
    const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
      const at::Tensor part = b.index_select(1, slots.tokens);
      EXPECT_TRUE(is_close(a.to(at::kDouble), part.to(at::kDouble), tolerance))
          << name << " " << mesh.where() << " differs by " << (a - part).abs().max().item<double>();
    };
    compare(got.out.detach(), want.out.detach(), "out");
    const std::array<const char*, 3> names{"q", "k", "v"};
    for (size_t i = 0; i < 3; ++i) compare(got.gradients[i], want.gradients[i], names[i]);
  });
}

TEST(RingAttention, MatchesOneProcess) {
  for (const int n : {1, 2, 3, 4}) {
    for (const int64_t kv_heads : {kHeads, int64_t{2}}) {
      for (const bool has_documents : {false, true}) {
        expect_one_process({.n = n, .kv_heads = kv_heads, .has_documents = has_documents}, 1e-12);
      }
    }
  }
}

/// Messages travel between turns, in the same order on all ranks; long ones wait for their receiver.
TEST(RingAttention, MatchesOneProcessWithoutOverlap) {
  for (const int n : {2, 3, 4}) {
    for (const bool has_documents : {false, true}) {
      expect_one_process({.n = n, .kv_heads = 2, .has_documents = has_documents, .overlaps = false}, 1e-12);
    }
    for (const bool overlaps : {false, true}) expect_one_process({.n = n, .overlaps = overlaps, .width = 512}, 1e-12);
  }
}

/// Messages of the same size and dtype in another order are an error that names both labels, not wrong gradients.
TEST(RingAttention, LabelsCatchMessagesInAnotherOrder) {
  for (const int n : {2, 3, 4}) {
    const std::string text = message_of<CommError>(
        [&] { expect_one_process({.n = n, .overlaps = false, .schedule = gradients_before_keys}, 1e-12); });
    EXPECT_THAT(text, ::testing::AllOf(::testing::HasSubstr("the calls of sender and receiver differ"),
                                       ::testing::HasSubstr("\"gradient of keys, turn 1, "),
                                       ::testing::HasSubstr("\"keys, turn 1, ")));
  }
}

/// Queries of a document see nothing of the blocks without it; a document may be one token.
TEST(RingAttention, MatchesOneProcessInEveryDtype) {
  expect_one_process({.n = 3, .kv_heads = 2, .has_documents = true, .type = at::kFloat}, 2e-6);
  expect_one_process({.n = 3, .kv_heads = 2, .type = at::kFloat}, 2e-6);
  // Rounding inputs, out and gradients to 8 bits, relative to the largest element.
  expect_one_process({.n = 4, .kv_heads = 2, .has_documents = true, .type = at::kBFloat16}, 1.0 / 64);
  expect_one_process({.n = 2, .type = at::kBFloat16}, 1.0 / 64);
}

/// Scores and windows of a core: the ring knows where keys are in the text, in zigzag and in stripes.
void expect_scores_of_one_process(int n, const RingOrder& order_of, CoreScores of_core, bool has_documents,
                                  at::ScalarType type, double tolerance) {
  on_mesh({{"cp", n}}, [&](const Mesh& mesh) {
    const MeshAxis& axis = mesh["cp"];
    const DimIndex order = order_of.tokens(kLength, n);
    const DimIndex index = order.slice(axis.coord() * kLength / n, kLength / n, kLength);
    const at::Tensor tokens = index.indices(kLength / n);
    const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
    Tensors whole, pieces;
    for (const int64_t heads : {kHeads, int64_t{2}, int64_t{2}}) {
      const at::Tensor x = random_tensor({kRows, kLength, heads, kWidth}, 11 + whole.size()).to(type);
      whole.push_back(leaf(x));
      pieces.push_back(leaf(x.index_select(1, tokens)));
    }
    Scores of_whole = of_core.scores;
    CoreScores of_ring = of_core;
    if (of_whole.bias.defined()) {
      of_whole.bias = leaf(of_whole.bias);
      of_ring.scores.bias = leaf(of_whole.bias.detach());
    }
    const at::Tensor outer = random_tensor({kRows, kLength, kHeads, kWidth}, 17).to(type);
    VisibleKeys seen = VisibleKeys::causal();
    if (of_core.window > 0) seen = seen.within_window(of_core.window);
    if (has_documents) seen = seen.within_documents(some_documents(), some_documents());
    const at::Tensor want = fused_attention(whole[0], whole[1], whole[2], seen, of_whole);
    want.backward(outer);

    AttentionCore core({});
    const Hook hook = core.add_hook(
        ring_attention(axis, checked_ring_schedule, order_of,
                       [&](const Module&, const Tensors&, int64_t, const ForwardContext&) { return of_ring; }));
    ForwardContext context;
    context.set(Dim::sequence, index);
    if (has_documents) context.documents = some_documents().index_select(1, tokens);
    const at::Tensor got = core.run(pieces, context).front();
    got.backward(outer.index_select(1, tokens));
    const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
      EXPECT_TRUE(is_close(a.to(at::kDouble), b.to(at::kDouble), tolerance))
          << name << " " << mesh.where() << " of " << n << ", window " << of_core.window;
    };
    compare(got.detach(), want.detach().index_select(1, tokens), "out");
    const std::array<const char*, 3> names{"q", "k", "v"};
    for (size_t i = 0; i < 3; ++i) compare(pieces[i].grad(), whole[i].grad().index_select(1, tokens), names[i]);
    if (!of_whole.bias.defined()) return;
    const at::Tensor of_bias = at::empty_like(of_whole.bias);
    all_reduce_async(axis.comm(), of_ring.scores.bias.grad(), of_bias, ReduceOp::sum, {"bias"}).wait();
    compare(of_bias, of_whole.bias.grad(), "bias");
  });
}

TEST(RingAttention, HasTheScoresAndWindowsOfTheCore) {
  const Scores biased{.scale = 0.4, .soft_cap = 0.8, .bias = random_tensor({kHeads, kLength}, 5), .zero = kLength - 1};
  for (const RingOrder& order : {zigzag(), striped()}) {
    for (const int n : {2, 3, 4}) {
      for (const bool has_documents : {false, true}) {
        for (const int64_t window : {0, 1, 3, 9}) {
          expect_scores_of_one_process(n, order, {biased, window}, has_documents, at::kDouble, 1e-12);
          expect_scores_of_one_process(n, order, {{}, window}, has_documents, at::kFloat, 2e-6);
        }
      }
      Scores of_fp32 = biased;
      of_fp32.bias = biased.bias.to(at::kFloat);
      expect_scores_of_one_process(n, order, {of_fp32, 9}, true, at::kFloat, 4e-6);
    }
  }
}

TEST(RingAttention, DropsTheWeightsThatOneProcessDrops) {
  for (const bool has_documents : {false, true}) {
    expect_one_process({.n = 3, .kv_heads = 2, .has_documents = has_documents, .dropout = 0.4}, 1e-12);
  }
}

// ---- what it costs, and what it refuses ----

Tensors inputs_of(int64_t local, int64_t kv_heads, const at::TensorOptions& options) {
  Tensors inputs;
  for (const int64_t heads : {kHeads, kv_heads, kv_heads}) {
    inputs.push_back(at::ones({kRows, local, heads, kWidth}, options).requires_grad_());
  }
  return inputs;
}

/// Bytes that a rank sends in forward, and in forward and backward.
std::pair<int64_t, int64_t> bytes_of(const Mesh& mesh, const at::TensorOptions& options, bool has_documents) {
  const MeshAxis& axis = mesh["cp"];
  const int64_t local = kLength / axis.size();
  AttentionCore core({});
  const Hook hook = core.add_hook(ring_attention(axis));
  ForwardContext context;
  context.set(Dim::sequence, zigzag_order(kLength, axis.size()).slice(axis.coord() * local, local, kLength));
  if (has_documents) context.documents = at::zeros({kRows, local}, options.dtype(at::kLong));
  const int64_t before = mesh.bytes_sent();
  const at::Tensor out = core.run(inputs_of(local, 2, options), context).front();
  const int64_t forward = mesh.bytes_sent() - before;
  out.backward(at::ones_like(out));
  return {forward, mesh.bytes_sent() - before};
}

TEST(RingAttention, SendsTheDocumentedBytes) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const bool has_documents : {false, true}) {
      const int64_t tokens = kRows * kLength / 4, elements = 2 * tokens * 2 * kWidth;
      const int64_t x = elements * static_cast<int64_t>(c10::elementSize(type));
      const int64_t g = elements * (type == at::kDouble ? 8 : 4);
      const std::pair want{3 * x + (has_documents ? 3 * 8 * tokens : 0),
                           3 * x + (has_documents ? 3 * 8 * tokens : 0) + 3 * x + 4 * g};
      on_mesh({{"cp", 4}}, [&](const Mesh& mesh) { EXPECT_EQ(bytes_of(mesh, type, has_documents), want); });
      const Mesh record = Mesh::create(make_record_world(1, 4), {{"cp", 4}});
      EXPECT_EQ(bytes_of(record, at::TensorOptions(type).device(at::kMeta), has_documents), want);
    }
  }
}

/// Of 4 ranks with stretches of 6 tokens, windows of 3 reach into the block before: other blocks are not computed.
TEST(RingAttention, SkipsBlocksOutsideOfTheWindow) {
  const auto num_blocks = [](int64_t window) {
    std::array<int64_t, 4> counts{};
    on_mesh({{"cp", 4}}, [&](const Mesh& mesh) {
      const MeshAxis& axis = mesh["cp"];
      AttentionCore core({.window = window});
      const Hook hook = core.add_hook(ring_attention(axis));
      ForwardContext context;
      context.set(Dim::sequence, zigzag_order(kLength, 4).slice(axis.coord() * 6, 6, kLength));
      PathLog log;
      const PathScope scope(&log);
      core.run(inputs_of(6, kHeads, at::kFloat), context);
      for (const auto& [path, count] : log.counts()) {
        if (path.starts_with("ring attention")) counts[static_cast<size_t>(axis.coord())] += count;
      }
    });
    return counts;
  };
  // Rank k has the chunks k and 7 - k of 3 tokens. A window of 3 reaches the chunk before: those of ranks k - 1 and
  // k + 1, or its own.
  EXPECT_EQ(num_blocks(0), (std::array<int64_t, 4>{4, 4, 4, 4}));
  EXPECT_EQ(num_blocks(3), (std::array<int64_t, 4>{2, 3, 3, 2}));
  EXPECT_EQ(num_blocks(1), (std::array<int64_t, 4>{1, 1, 1, 1}));
}

TEST(RingAttention, SendsNothingOnOneRankAndWhenItGenerates) {
  on_mesh({{"cp", 2}}, [](const Mesh& mesh) {
    AttentionCore core({});
    const Hook hook = core.add_hook(ring_attention(mesh["cp"]));
    const Tensors inputs = inputs_of(kLength, kHeads, at::kDouble);
    const int64_t before = mesh.bytes_sent();
    core.run(inputs, {.phase = Phase::generate});
    EXPECT_EQ(mesh.bytes_sent(), before);
  });
  on_mesh({{"cp", 1}}, [](const Mesh& mesh) {
    const std::pair nothing{int64_t{0}, int64_t{0}};
    EXPECT_EQ(bytes_of(mesh, at::kDouble, true), nothing);
  });
}

TEST(RingAttention, RefusesTokensInAnotherOrder) {
  on_mesh({{"cp", 2}}, [](const Mesh& mesh) {
    AttentionCore core({});
    const Hook hook = core.add_hook(ring_attention(mesh["cp"]));
    ForwardContext context;
    context.set(Dim::sequence, DimIndex(mesh["cp"].coord() * 12, 12, 24));
    const std::string text = message_of<UsageError>([&] { core.run(inputs_of(12, kHeads, at::kDouble), context); });
    EXPECT_NE(text.find("zigzag_order"), std::string::npos) << text;
  });
}

/// A dry run checks that the sequence is split over this axis alone, and sends nothing.
TEST(RingAttention, ChecksLayouts) {
  on_mesh({{"cp", 2}}, [](const Mesh& mesh) {
    AttentionCore core({});
    const Hook hook = core.add_hook(ring_attention(mesh["cp"]));
    const auto layout_with = [&](const Placement& of_q, const Placement& of_k) {
      LayoutTable table;
      const Tensors inputs = inputs_of(12, 2, at::TensorOptions(at::kDouble).device(at::kMeta));
      table.set(inputs[0], Layout{{"cp", of_q}}, "q");
      for (size_t i : {1, 2}) table.set(inputs[i], Layout{{"cp", of_k}}, "k or v");
      return table.of(core.run(inputs, {.layouts = &table}).front(), "test");
    };
    const int64_t before = mesh.bytes_sent();
    EXPECT_EQ(layout_with(Shard{1}, Shard{1}), (Layout{{"cp", Shard{1}}}));
    EXPECT_TRUE(is_refused([&] { layout_with(Shard{1}, Replicate{}); }));
    EXPECT_TRUE(is_refused([&] { layout_with(Replicate{}, Replicate{}); }));
    EXPECT_EQ(mesh.bytes_sent(), before);
  });
}

}  // namespace
}  // namespace caravan::testing::ring_attention_test
