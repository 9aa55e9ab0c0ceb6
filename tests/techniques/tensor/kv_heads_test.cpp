#include "caravan/techniques/tensor/kv_heads.h"

#include <gtest/gtest.h>

#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/attention/attention.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::kv_heads_test {
namespace {

TEST(KvHeads, AreARangeWhereQueriesShareThemEvenly) {
  EXPECT_EQ(kv_heads_of(0, 2, 4), (KvHeads{.first = 0, .count = 1}));
  EXPECT_EQ(kv_heads_of(6, 2, 4), (KvHeads{.first = 1, .count = 1}));
  EXPECT_EQ(kv_heads_of(4, 4, 2), (KvHeads{.first = 2, .count = 2}));
  EXPECT_EQ(kv_heads_of(3, 2, 1), (KvHeads{.first = 3, .count = 2}));
  EXPECT_EQ(kv_heads_of(0, 3, 2), (KvHeads{.each = {0, 0, 1}}));
  EXPECT_EQ(kv_heads_of(3, 3, 2), (KvHeads{.each = {1, 2, 2}}));
  EXPECT_EQ(kv_heads_of(1, 4, 3), (KvHeads{.first = 0, .count = 2}));
  EXPECT_EQ(kv_heads_of(2, 4, 3), (KvHeads{.each = {0, 1, 1, 1}}));
}

struct Case {
  int64_t heads, kv_heads;
  Axes axes;              ///< that split the query heads
  std::string both = {};  ///< splits the key heads too
};

/// A dry run with q split by the axes and k, v whole on all of them but `both`, which splits them too.
Layout learn(AttentionCore& core, const Tensors& inputs, const Mesh& mesh, const std::string& both = "") {
  LayoutTable table;
  Tensors meta;
  Layout of_q, of_k;
  for (const MeshAxis& axis : mesh.axes()) {
    of_q = of_q.completed(mesh, Replicate{}).moved(axis.name(), Shard{2});
    of_k = of_k.completed(mesh, Replicate{});
    if (axis.name() == both) of_k = of_k.moved(axis.name(), Shard{2});
  }
  for (const at::Tensor& x : inputs) meta.push_back(at::empty(x.sizes(), x.options().device(at::kMeta)));
  table.set(meta[0], of_q, "q");
  for (const size_t i : {1, 2}) table.set(meta[i], of_k, "k or v");
  return table.of(core.run(meta, {.layouts = &table}).front(), "test");
}

/// Attention of each rank's heads, with the keys and values that it gets, equals that of one process. So do the
/// gradients, which are summands for keys and values.
TEST(KvHeads, AreThoseOfTheQueries) {
  for (const Case& what :
       {Case{6, 3, {{"tp", 2}}}, Case{8, 2, {{"tp", 4}}}, Case{4, 1, {{"tp", 2}}}, Case{12, 4, {{"tp", 3}}},
        Case{12, 3, {{"tp", 2}, {"cp", 2}}}, Case{12, 2, {{"tp", 2}, {"cp", 3}}, "tp"}, Case{4, 4, {{"tp", 2}}}}) {
    int64_t parts = 1;
    for (const AxisSize& axis : what.axes) parts *= axis.size;
    std::vector<at::Tensor> of_k(static_cast<size_t>(parts));
    at::Tensor want_of_k;
    on_mesh(what.axes, [&](const Mesh& mesh) {
      const auto inputs = [&] {
        return Tensors{random_tensor({2, 5, what.heads, 8}, 1), random_tensor({2, 5, what.kv_heads, 8}, 2),
                       random_tensor({2, 5, what.kv_heads, 8}, 3)};
      };
      const int64_t mine = what.heads / parts, first = mesh.rank() * mine;
      const at::Tensor gradient = random_tensor({2, 5, what.heads, 8}, 4);
      Tensors whole = inputs(), part = inputs();
      whole[1].requires_grad_();
      part[1].requires_grad_();
      AttentionCore core({});
      const at::Tensor want = core.run(whole, {}).front();
      want.backward(gradient);
      const Hook hook = core.add_hook(kv_heads(mesh));
      const Hook again = core.add_hook(kv_heads(mesh));  // from another plan: it has nothing to do
      Tensors local{part[0].narrow(2, first, mine), part[1], part[2]};
      if (!what.both.empty()) {
        const int64_t keys = what.kv_heads / mesh[what.both].size();
        for (const size_t i : {1, 2}) local[i] = part[i].narrow(2, mesh[what.both].coord() * keys, keys);
      }
      for (const MeshAxis& axis : mesh.axes())
        EXPECT_TRUE(learn(core, local, mesh, what.both)[axis.name()].is_shard(2));
      const at::Tensor got = core.run(local, {}).front();
      got.backward(gradient.narrow(2, first, mine));
      EXPECT_TRUE(is_close(got.detach(), want.narrow(2, first, mine).detach(), 1e-12));
      of_k[static_cast<size_t>(mesh.rank())] = part[1].grad();
      if (mesh.rank() == 0) want_of_k = whole[1].grad();
    });
    EXPECT_TRUE(is_close(at::stack(of_k).sum(0), want_of_k, 1e-12)) << what.heads << " " << what.kv_heads;
  }
}

TEST(KvHeads, ChecksLayouts) {
  on_mesh({{"cp", 2}}, [](const Mesh& mesh) {
    AttentionCore core({});
    const Hook hook = core.add_hook(kv_heads(mesh));
    const auto layout_with = [&](const Placement& of_q, const Placement& of_k, const Placement& of_v,
                                 Phase phase = Phase::forward) {
      LayoutTable table;
      const auto meta = at::TensorOptions(at::kDouble).device(at::kMeta);
      const Tensors inputs{at::empty({2, 5, 3, 8}, meta), at::empty({2, 5, 3, 8}, meta), at::empty({2, 5, 3, 8}, meta)};
      table.set(inputs[0], Layout{{"cp", of_q}}, "q");
      table.set(inputs[1], Layout{{"cp", of_k}}, "k");
      table.set(inputs[2], Layout{{"cp", of_v}}, "v");
      return table.of(core.run(inputs, {.phase = phase, .layouts = &table}).front(), "test");
    };
    const Layout split{{"cp", Shard{2}}};
    EXPECT_EQ(layout_with(Shard{2}, Replicate{}, Replicate{}), split);
    EXPECT_EQ(layout_with(Shard{2}, Shard{2}, Shard{2}), split);
    EXPECT_EQ(layout_with(Shard{2}, Invariant{}, Invariant{}, Phase::generate), split);
    EXPECT_TRUE(is_refused([&] { layout_with(Shard{2}, Invariant{}, Invariant{}); }));
    EXPECT_TRUE(is_refused([&] { layout_with(Shard{2}, Replicate{}, Invariant{}); }));
    EXPECT_TRUE(is_refused([&] { layout_with(Replicate{}, Shard{2}, Shard{2}); }));
  });
}

}  // namespace
}  // namespace caravan::testing::kv_heads_test
