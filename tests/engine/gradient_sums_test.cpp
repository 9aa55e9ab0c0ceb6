#include "caravan/engine/gradients/gradient_sums.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::gradient_sums_test {
namespace {

using ::testing::HasSubstr;

/// Four units of one parameter each, of one aligned slot (128 bytes); in the flat buffers u3, u2, u1, u0.
struct Sums {
  using LayOut = std::function<void(Strategy& strategy)>;
  Sums(const Mesh& mesh_, int64_t bucket_bytes, const LayOut& lay_out = {}) : mesh(mesh_) {
    strategy = whole_model(model, mesh);
    strategy.name = "test";
    add_data_axis(strategy, mesh, "dp");
    strategy.bucket_bytes = bucket_bytes;
    if (lay_out) lay_out(strategy);
    state.layout = FlatLayout(strategy, mesh);
    state.allocate(strategy, mesh, at::kFloat, at::kCPU);
    for (const auto& piece : state.gradients.pieces())
      piece.memory.fill_(99);  // of the step before: overwritten, not added to
    sums = std::make_unique<GradientSums>(state, strategy, pool, transfers);
    sums->begin_step();
  }

  void accumulate_grad(int unit, const at::Tensor& gradient) const {
    const GradientSink::Sum sum = sums->sum_of(at(unit));
    if (sum.is_empty) sum.tensor.zero_();
    sum.tensor.add_(gradient);
    sums->accumulated(at(unit));
  }
  void accumulate_grad(int unit, double value) const { accumulate_grad(unit, like(unit, value)); }
  Parameter& at(int unit) const { return model.unit(static_cast<size_t>(unit)).at("w"); }
  at::Tensor like(int unit, double value) const { return at::full(at(unit).global_shape(), value, at::kFloat); }
  at::Tensor held(int unit) const { return state.layout.view(state.gradients, at(unit)); }
  int64_t reductions() const { return mesh["dp"].comm().traffic().calls[static_cast<size_t>(Verb::all_reduce)]; }

  Mesh mesh;
  Chain model{{{{"w", {2}}}, {{"w", {3}}}, {{"w", {4}}}, {{"w", {5}}}}};
  Strategy strategy;
  FlatState state;
  BufferPool pool{mesh.world(), false};
  TransferQueue transfers;
  std::unique_ptr<GradientSums> sums;
};

void on_ranks(int n, const std::function<void(const Mesh&)>& body) { on_mesh({{"dp", n}}, body); }

/// A run of neighbours goes out once it has bucket_bytes, or when the next does not follow it.
TEST(GradientSums, NeighboursShareCollectives) {
  for (const auto& [bytes, want] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{{1, {1, 2, 3, 4, 4}},
                                                                                         {128, {1, 2, 3, 4, 4}},
                                                                                         {129, {0, 1, 1, 2, 2}},
                                                                                         {257, {0, 0, 1, 1, 2}},
                                                                                         {1 << 20, {0, 0, 0, 0, 1}}}) {
    on_ranks(2, [&, bytes = bytes, want = want](const Mesh& mesh) {
      const Sums sums(mesh, bytes);
      std::vector<int64_t> got;
      for (int unit = 0; unit < 4; ++unit) sums.accumulate_grad(unit, unit + mesh.rank());
      for (int unit = 3; unit >= 0; --unit) {
        sums.sums->reduce(unit);
        got.push_back(sums.reductions());
      }
      sums.sums->finish();
      got.push_back(sums.reductions());
      EXPECT_EQ(got, want) << bytes;
      for (int unit = 0; unit < 4; ++unit) EXPECT_TRUE(same_bits(sums.held(unit), sums.like(unit, 2 * unit + 1)));
    });
  }
}

TEST(GradientSums, MayBeReducedInAnyOrder) {
  std::vector<int> units{0, 1, 2, 3};
  do {
    on_ranks(2, [&](const Mesh& mesh) {
      const Sums sums(mesh, 1 << 20);
      for (const int unit : units) {
        sums.accumulate_grad(unit, unit + 1);
        sums.sums->reduce(unit);
      }
      sums.sums->finish();
      for (const int unit : units) EXPECT_TRUE(same_bits(sums.held(unit), sums.like(unit, 2 * (unit + 1))));
    });
  } while (std::next_permutation(units.begin(), units.end()));
}

TEST(GradientSums, AccumulateUntilReduced) {
  on_ranks(2, [](const Mesh& mesh) {
    const Sums sums(mesh, 1);
    for (const double value : {1.0, 2.0, 4.0}) {
      for (int unit = 0; unit < 4; ++unit) sums.accumulate_grad(unit, value);
    }
    EXPECT_EQ(sums.reductions(), 0);
    EXPECT_TRUE(at::equal(sums.sums->local(sums.at(2)), sums.like(2, 7))) << "this rank's summand";
    for (int unit = 0; unit < 4; ++unit) sums.sums->reduce(unit);
    sums.sums->finish();
    EXPECT_TRUE(at::equal(sums.held(2), sums.like(2, 14)));
    sums.sums->begin_step();
    EXPECT_FALSE(sums.sums->local(sums.at(2)).defined());
    for (int unit = 0; unit < 4; ++unit) sums.accumulate_grad(unit, 5);
    for (int unit = 0; unit < 4; ++unit) sums.sums->reduce(unit);
    sums.sums->finish();
    EXPECT_TRUE(at::equal(sums.held(2), sums.like(2, 10)));
  });
}

TEST(GradientSums, TakeAnyFloatingDtypeAndExistingSums) {
  on_ranks(1, [](const Mesh& mesh) {
    const Sums sums(mesh, 1);
    struct Forward final : GradientSink {
      explicit Forward(GradientSums& sums_) : sums(sums_) {}
      int64_t open_step() const noexcept override { return 0; }
      Sum sum_of(Parameter& parameter) override { return sums.sum_of(parameter); }
      void accumulated(Parameter& parameter) override { sums.accumulated(parameter); }
      void added_early(Parameter&) override {}
      void confirmed(Parameter&) override {}
      void withdrawn(Parameter&) override {}
      void defer(Parameter&, std::function<void()> work) override { work(); }
      GradientSums& sums;
    } sink(*sums.sums);
    for (int unit = 0; unit < 4; ++unit) {
      sums.at(unit).set_sharded(at::zeros(sums.at(unit).global_shape()).requires_grad_(), {});
      sums.at(unit).set_sink(&sink);
    }
    sums.at(3).accumulate_grad(sums.like(3, 1.5).to(at::kBFloat16));
    sums.at(3).accumulate_grad(sums.like(3, 0.25).to(at::kDouble));
    EXPECT_TRUE(at::equal(sums.held(3), sums.like(3, 1.75)));
    sums.at(2).accumulate_grad([](at::Tensor& sum, bool is_empty) {
      EXPECT_TRUE(is_empty);
      sum.fill_(3);
    });
    sums.at(2).accumulate_grad(sums.held(2));  // autograd added in place to a view that a user kept as .grad
    EXPECT_TRUE(at::equal(sums.held(2), sums.like(2, 3)));
    for (int unit = 0; unit < 4; ++unit) sums.at(unit).set_sink(nullptr);
  });
}

TEST(GradientSums, AMissingGradientCountsAsZeroAndIsNamed) {
  on_ranks(2, [](const Mesh& mesh) {
    for (const bool allow : {false, true}) {
      const Sums sums(mesh, 1 << 20, [&](Strategy& strategy) { strategy.find_unused_parameters = allow; });
      for (const int unit : {0, 1, 3}) sums.accumulate_grad(unit, 1);
      for (int unit = 3; unit >= 0; --unit) sums.sums->reduce(unit);
      const std::string message = message_of<UsageError>([&] { sums.sums->finish(); });
      if (!allow) {
        EXPECT_THAT(message, HasSubstr("[test] u2.w: got no gradient in this step"));
        continue;
      }
      EXPECT_EQ(message, "");
      EXPECT_TRUE(at::equal(sums.held(2), sums.like(2, 0)));
      EXPECT_TRUE(at::equal(sums.held(1), sums.like(1, 2)));
    }
  });
}

TEST(GradientSums, UsedInAnEarlierMicroBatchIsUsed) {
  on_ranks(2, [](const Mesh& mesh) {
    const Sums sums(mesh, 1);
    for (int unit = 0; unit < 4; ++unit) sums.accumulate_grad(unit, 1);
    for (const int unit : {0, 1, 3}) sums.accumulate_grad(unit, 1);
    for (int unit = 3; unit >= 0; --unit) sums.sums->reduce(unit);
    EXPECT_NO_THROW(sums.sums->finish());
    EXPECT_TRUE(at::equal(sums.held(2), sums.like(2, 2)));
    EXPECT_TRUE(at::equal(sums.held(3), sums.like(3, 4)));
  });
}

const Sums::LayOut kRows = [](Strategy& strategy) {
  strategy.layouts.at("u1.w").sharded = {{"dp", Shard{0, {1, 2}}}};
  strategy.layouts.at("u3.w").sharded = {{"dp", Shard{0, {3, 2}}}};
};

/// Gradients of sharded parameters may be reduced in every micro-batch and are then accumulated in the shards.
TEST(GradientSums, AccumulateInShards) {
  on_ranks(2, [](const Mesh& mesh) {
    const Sums sums(mesh, 1, kRows);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      for (const int unit : {3, 1}) {
        sums.accumulate_grad(unit,
                             at::arange(sums.at(unit).global_shape()[0], at::kFloat) + micro_batch + 10 * mesh.rank());
        sums.sums->reduce(unit);
      }
    }
    for (const int unit : {2, 0}) {
      sums.accumulate_grad(unit, 1);
      sums.sums->reduce(unit);
    }
    sums.sums->finish();
    for (const int unit : {3, 1}) {  // sum over micro-batches m and ranks r of i + m + 10 r
      const at::Tensor whole = 6 * at::arange(sums.at(unit).global_shape()[0], at::kFloat) + 6 + 30;
      EXPECT_TRUE(
          at::equal(sums.held(unit), piece_of(whole, sums.strategy.layouts.at(sums.at(unit).name()).sharded, mesh)));
    }
  });
}

TEST(GradientSums, ALateOneIsRefused) {
  on_ranks(1, [](const Mesh& mesh) {
    const Sums sums(mesh, 1);
    sums.accumulate_grad(3, 1);
    sums.sums->reduce(3);
    EXPECT_THAT(message_of<UsageError>([&] { sums.accumulate_grad(3, 1); }),
                HasSubstr("u3.w: a gradient arrives after it was reduced"));
  });
}

/// One more reduction could come, so it is refused at the end of the step: else it would be lost in silence.
TEST(GradientSums, ALateOneForShardsIsRefusedAtTheEnd) {
  on_ranks(2, [](const Mesh& mesh) {
    const Sums sums(mesh, 1, kRows);
    for (int unit = 3; unit >= 0; --unit) {
      sums.accumulate_grad(unit, 1);
      sums.sums->reduce(unit);
    }
    const std::string message = message_of<UsageError>([&] {
      sums.accumulate_grad(3, 1);
      sums.sums->finish();
    });
    EXPECT_THAT(message, HasSubstr("u3.w: a gradient arrives after it was reduced"));
  });
}

/// Layers accumulate gradients of the compute tensors; that of the unsharded parameter follows once they are complete.
TEST(GradientSums, OfADerivedParameterGoThroughItsDerivation) {
  on_ranks(2, [](const Mesh& mesh) {
    const Sums sums(mesh, 1, kRows);
    int num_derivations = 0;
    for (const int unit : {3, 2}) {  // to shards, and in place
      Parameter& parameter = sums.at(unit);
      parameter.set_unsharded(at::full(parameter.global_shape(), 2.0F).requires_grad_(), {});
      parameter.set_derivation(
          [&](const at::Tensor& leaf) {
            ++num_derivations;
            return leaf.square().view({-1, 1}) * at::ones({1, 2});
          },
          {});
      for (const double value : {1.0, 2.0}) sums.accumulate_grad(unit, at::full({parameter.num_elements(), 2}, value));
    }
    for (int unit = 3; unit >= 0; --unit) {
      if (unit < 2) sums.accumulate_grad(unit, 1);
      sums.sums->reduce(unit);
    }
    sums.sums->finish();
    EXPECT_EQ(num_derivations, 2);
    for (const int unit : {3, 2}) {  // 2 leaf x 2 columns x (1 + 2) x 2 ranks
      EXPECT_TRUE(at::equal(sums.held(unit), at::full_like(sums.held(unit), 48))) << unit;
    }
  });
}

/// On a world where every collective completes at once: otherwise the number in flight depends on timing.
TEST(GradientSums, GiveTheirMemoryBack) {
  const Sums sums(Mesh::create(make_record_world(0, 2), {{"dp", 2}}), 1, kRows);
  std::vector<int64_t> bytes;
  for (int step = 0; step < 4; ++step) {
    sums.sums->begin_step();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (const int unit : {3, 1}) {
        sums.accumulate_grad(unit, 1);
        sums.sums->reduce(unit);
      }
    }
    for (const int unit : {2, 0}) {
      sums.accumulate_grad(unit, 1);
      sums.sums->reduce(unit);
    }
    sums.sums->finish();
    bytes.push_back(sums.pool.bytes());
  }
  EXPECT_GE(bytes[0], 128);  // one slot
  EXPECT_THAT(bytes, ::testing::Each(bytes[0]));
}

}  // namespace
}  // namespace caravan::testing::gradient_sums_test
