/// The entry: what it reads, and beside what it is refused; and its kernels.

#include <cmath>
#include <gmock/gmock.h>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/optim/adafactor_kernels.h"
#include "caravan/recipe/recipe.h"
#include "caravan/registry/registry.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::adafactor_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Keys = std::vector<std::string>;

std::string refused(const Keys& keys, int ranks = 4) {
  Keys all{"optimizer.kind=adafactor"};
  all.insert(all.end(), keys.begin(), keys.end());
  return refusal<UsageError>([&] { plan_batch(parse_recipe("", "test", all), ranks); });
}

TEST(Adafactor, FitsWhatUpdatesEverythingAtOnce) {
  for (const Keys& keys : {Keys{},
                           {"data_parallel.technique=zero1"},
                           {"data_parallel.technique=zero3"},
                           {"data_parallel.technique=hsdp", "data_parallel.shard=2"},
                           {"data_parallel.technique=diloco"},
                           {"data_parallel.technique=param_server"},
                           {"mesh.tp=2"},
                           {"mesh.pp=2"},
                           {"mesh.cp=2"},
                           {"mesh.ep=2", "moe.experts=4"},
                           {"precision.compute=bf16", "precision.gradients=bf16"},
                           {"offload.activations=host"}}) {
    EXPECT_EQ(refused(keys), "");
  }
}

TEST(Adafactor, IsRefusedWhereRowsAreUpdatedInParts) {
  const std::string why = "\"adafactor\" needs sums over whole rows and columns, and ";
  for (const char* kind : {"optimizer", "parameters", "gradients"}) {
    EXPECT_THAT(
        refused({"offload." + std::string(kind) + "=host"}),
        AllOf(HasSubstr("optimizer.kind"), HasSubstr(why + "what is offloaded is updated part by part (offload."),
              HasSubstr("use optimizer.kind = \"adamw\", or offload." + std::string(kind) + " = \"none\"")));
  }
  EXPECT_THAT(refused({"data_parallel.technique=param_server", "data_parallel.mode=async"}),
              AllOf(HasSubstr(why + "workers do not wait for each other"), HasSubstr("data_parallel.mode = \"sync\"")));
  EXPECT_THAT(
      refused({"mesh.pp=2", "pipeline.schedule=pipedream", "optimizer.clip_norm=0", "model.tie_embeddings=false"}),
      HasSubstr(why + "the stages of pipedream"));
  EXPECT_THAT(refused({"tiling.tiles=2"}), AllOf(HasSubstr(why + "weights are updated in tiling.tiles parts"),
                                                 ::testing::EndsWith("use optimizer.kind = \"adamw\"")));
}

TEST(Adafactor, ReadsItsKeys) {
  const Recipe recipe =
      parse_recipe("", "test",
                   {"optimizer.kind=adafactor", "optimizer.update_momentum=0.9", "optimizer.decay_exponent=0.5",
                    "optimizer.epsilon1=1e-20", "optimizer.clip_threshold=2", "optimizer.scale_by_parameter=true"});
  EXPECT_EQ(recipe.optimizer.kind.real("update_momentum"), 0.9);
  EXPECT_EQ(recipe.optimizer.kind.real("decay_exponent"), 0.5);
  EXPECT_EQ(recipe.optimizer.kind.real("epsilon1"), 1e-20);
  EXPECT_EQ(recipe.optimizer.kind.real("clip_threshold"), 2);
  EXPECT_TRUE(recipe.optimizer.kind.flag("scale_by_parameter"));
  const Setting initial("optimizer", "adafactor");
  EXPECT_EQ(initial.real("update_momentum"), 0);
  EXPECT_EQ(initial.real("decay_exponent"), 0.8);
  EXPECT_EQ(initial.real("epsilon1"), 1e-30);
  EXPECT_EQ(initial.real("clip_threshold"), 1);
  EXPECT_FALSE(initial.flag("scale_by_parameter"));
  EXPECT_THAT(refused({"optimizer.epsilon=1e-8"}), HasSubstr("is used with optimizer.kind = \"adamw\""));
  EXPECT_THAT(refused({"optimizer.clip_threshold=0"}), HasSubstr("clip_threshold"));
  EXPECT_THAT(refused({"optimizer.decay_exponent=2"}), HasSubstr("decay_exponent"));
}

/// 67 rows of 133 columns, in rows of 150: no multiples of a vector or of a stretch.
constexpr kernels::MatrixBlock kBlock{.rows = 67, .columns = 133, .stride = 150};

std::vector<float> wave(double frequency, int64_t count = kBlock.rows * kBlock.stride) {
  std::vector<float> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(std::sin(frequency * static_cast<double>(i)));
  return all;
}

template <class F>
void for_elements(const F& f) {
  for (int64_t i = 0; i < kBlock.rows; ++i) {
    for (int64_t k = 0; k < kBlock.columns; ++k) {
      f(static_cast<size_t>(i), static_cast<size_t>(k), static_cast<size_t>(i * kBlock.stride + k));
    }
  }
}

TEST(AdafactorKernels, AddUpRowsAndColumns) {
  const std::vector<float> gradients = wave(0.71), row_factors = wave(0.3, kBlock.rows),
                           column_factors = wave(0.2, kBlock.columns);
  std::vector<float> rows(static_cast<size_t>(kBlock.rows), 1), columns(static_cast<size_t>(kBlock.columns), 1);
  std::vector<double> updates(rows.size());
  kernels::add_squares_of_rows(gradients.data(), kBlock, 0.25, rows.data());
  kernels::add_squares_of_columns(gradients.data(), kBlock, 0.25, columns.data());
  kernels::squares_of_update(gradients.data(), kBlock, row_factors.data(), column_factors.data(), 0.5, updates.data());
  std::vector<double> want_rows(rows.size(), 1), want_columns(columns.size(), 1), want_updates(rows.size());
  for_elements([&](size_t i, size_t k, size_t at) {
    const double square = std::pow(0.5 * static_cast<double>(gradients[at]), 2);
    want_rows[i] += square;
    want_columns[k] += square;
    want_updates[i] +=
        square * std::pow(static_cast<double>(row_factors[i]) * static_cast<double>(column_factors[k]), 2);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(rows[i], want_rows[i], 1e-5) << i;
    EXPECT_NEAR(updates[i], want_updates[i], 1e-5) << i;
  }
  for (size_t k = 0; k < columns.size(); ++k) EXPECT_NEAR(columns[k], want_columns[k], 1e-5) << k;
}

TEST(AdafactorKernels, UpdateNothingBesideTheBlock) {
  const std::vector<float> gradients = wave(0.71), row_factors = wave(0.3, kBlock.rows),
                           column_factors = wave(0.2, kBlock.columns), before = wave(0.1);
  const kernels::AdafactorStep step{.size = 0.01, .decay = 0.99, .momentum = 0.9};
  for (const bool has_momentum : {false, true}) {
    const std::vector<float> updates_before = wave(0.4);
    std::vector<float> values = before, updates = updates_before;
    std::vector<kernels::Bf16> copies(values.size());
    kernels::adafactor(values.data(), gradients.data(), {.rows = row_factors.data(), .columns = column_factors.data()},
                       has_momentum ? updates.data() : nullptr, copies.data(), kBlock, step);
    std::vector<double> want(before.begin(), before.end());
    for_elements([&](size_t i, size_t k, size_t at) {
      double update = 0.01 * static_cast<double>(gradients[at]) * static_cast<double>(row_factors[i]) *
                      static_cast<double>(column_factors[k]);
      if (has_momentum) update = 0.9 * static_cast<double>(updates_before[at]) + 0.1 * update;
      want[at] = 0.99 * want[at] - update;
    });
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], want[i], 1e-6) << i;
  }
}

TEST(AdafactorKernels, MoveSecondMomentsOfElements) {
  const std::vector<float> gradients = wave(0.71);
  std::vector<float> squares(gradients.size(), 0.5F);
  const auto count = static_cast<int64_t>(squares.size());
  const double sum = kernels::move_squares(gradients.data(), squares.data(), count, 0.5, 0.1, 1e-3);
  double want = 0;
  for (size_t i = 0; i < squares.size(); ++i) {
    const double gradient = 0.5 * static_cast<double>(gradients[i]), square = 0.45 + 0.1 * (gradient * gradient + 1e-3);
    EXPECT_NEAR(squares[i], square, 1e-6) << i;
    want += gradient * gradient / square;
  }
  EXPECT_NEAR(sum, want, 1e-5 * want);
}

}  // namespace
}  // namespace caravan::testing::adafactor_test
