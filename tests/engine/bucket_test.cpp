#include "caravan/engine/bucket.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/comm/tensor.h"
#include "tests/engine/parameters.h"

namespace caravan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Four parameters of one aligned slot (128 bytes) each; in the flat buffer d, c, b, a.
struct Buckets : ::testing::Test {
  Parameters parameters{{"a", {2}}, {"b", {3}}, {"c", {4}}, {"d", {5}}};
  std::shared_ptr<Communicator> world = make_record_world(0, 1);
  FlatState state = flatten(parameters.all(), *world);
  std::vector<int> paid;

  GradientBuckets make(int64_t bucket_bytes) {
    return {state, bucket_bytes, [this](const Bucket& bucket, const at::Tensor& range) {
              EXPECT_EQ(range.data_ptr(), state.gradients.narrow(0, bucket.offset, bucket.count).data_ptr());
              EXPECT_EQ(range.numel(), bucket.count);
              paid.push_back(bucket.index);
              return Work();
            }};
  }
  at::Tensor like(const std::string& name, float value) { return at::full(parameters.at(name).global_shape(), value); }
  void deposit(GradientBuckets& buckets, const std::string& name, float value) {
    buckets.deposit(parameters.at(name), like(name, value));
  }
  at::Tensor held(const std::string& name) { return state.layout.view(state.gradients, parameters.at(name)); }
};

TEST_F(Buckets, AreRangesOfAtLeastTheirBytes) {
  const auto names = [](const Bucket& bucket) {
    std::string names;
    for (const Parameter* parameter : bucket.parameters) names += parameter->name();
    return names;
  };
  for (const auto& [bytes, want] :
       std::vector<std::pair<int64_t, std::vector<std::string>>>{{1, {"d", "c", "b", "a"}},
                                                                 {128, {"d", "c", "b", "a"}},
                                                                 {129, {"dc", "ba"}},
                                                                 {257, {"dcb", "a"}},
                                                                 {1 << 20, {"dcba"}}}) {
    const GradientBuckets buckets = make(bytes);
    std::vector<std::string> got;
    int64_t end = 0;
    for (const Bucket& bucket : buckets.buckets()) {
      EXPECT_EQ(bucket.index, static_cast<int>(got.size()));
      EXPECT_EQ(bucket.offset, end);  // nothing between them is left out
      end += bucket.count;
      got.push_back(names(bucket));
    }
    EXPECT_EQ(got, want) << bytes;
    EXPECT_EQ(end, state.layout.count());
  }
  EXPECT_THAT(message_of<UsageError>([&] { make(0); }), HasSubstr("bucket_bytes: 0 bytes hold no gradient"));
}

TEST_F(Buckets, GoOutInTheirOrderWhateverOrderGradientsArriveIn) {
  std::vector<std::string> names{"a", "b", "c", "d"};
  do {
    GradientBuckets buckets = make(1);
    paid.clear();
    buckets.arm();
    for (size_t i = 0; i < names.size(); ++i) {
      deposit(buckets, names[i], static_cast<float>(names[i][0]));
      // Out is the longest run of full buckets from the first on.
      size_t full = 0;
      while (full < 4 &&
             std::find(names.begin(), names.begin() + i + 1, std::string(1, "dcba"[full])) != names.begin() + i + 1) {
        ++full;
      }
      EXPECT_EQ(paid.size(), full);
    }
    EXPECT_THAT(paid, ElementsAre(0, 1, 2, 3));
    buckets.finish_step();
    EXPECT_THAT(paid, ElementsAre(0, 1, 2, 3));
    for (const std::string& name : names) {
      EXPECT_TRUE(at::equal(held(name), like(name, static_cast<float>(name[0]))));
    }
  } while (std::next_permutation(names.begin(), names.end()));
}

TEST_F(Buckets, AccumulateWithoutPayingUntilArmed) {
  GradientBuckets buckets = make(1);
  state.gradients.fill_(99);  // of the step before: overwritten, not added to
  for (const float value : {1.0F, 2.0F}) {
    for (const auto* name : {"d", "c", "b", "a"}) deposit(buckets, name, value);
  }
  EXPECT_THAT(paid, IsEmpty());
  buckets.arm();
  for (const auto* name : {"d", "c", "b", "a"}) deposit(buckets, name, 4);
  EXPECT_THAT(paid, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(at::equal(held("c"), like("c", 7)));
  buckets.begin_step();
  buckets.arm();
  deposit(buckets, "c", 5);
  EXPECT_TRUE(at::equal(held("c"), like("c", 5)));
}

TEST_F(Buckets, WaitForEverySummandOfOneBackward) {
  parameters.at("d").set_num_deposits(2);
  GradientBuckets buckets = make(1);
  deposit(buckets, "d", 1);
  deposit(buckets, "d", 1);
  buckets.arm();
  deposit(buckets, "d", 1);
  EXPECT_THAT(paid, IsEmpty());
  deposit(buckets, "d", 1);
  EXPECT_THAT(paid, ElementsAre(0));
  EXPECT_TRUE(at::equal(held("d"), like("d", 4)));
}

TEST_F(Buckets, WhatGotNothingCountsAsZeroAndIsNamed) {
  GradientBuckets buckets = make(1 << 20);
  state.gradients.fill_(99);
  buckets.arm();
  deposit(buckets, "a", 1);
  deposit(buckets, "c", 1);
  EXPECT_THAT(buckets.unused(), ElementsAre(&parameters.at("d"), &parameters.at("b")));
  EXPECT_THAT(paid, IsEmpty());
  buckets.finish_step();
  EXPECT_THAT(paid, ElementsAre(0));
  EXPECT_TRUE(at::equal(held("b"), like("b", 0)));
  EXPECT_TRUE(at::equal(held("a"), like("a", 1)));
}

TEST_F(Buckets, UsedInAnEarlierMicroBatchIsUsed) {
  GradientBuckets buckets = make(1);
  for (const auto* name : {"d", "c", "b", "a"}) deposit(buckets, name, 1);
  buckets.arm();
  for (const auto* name : {"d", "b", "a"}) deposit(buckets, name, 1);
  EXPECT_THAT(buckets.unused(), IsEmpty());
  EXPECT_THAT(paid, ElementsAre(0));
  buckets.finish(1);
  EXPECT_THAT(paid, ElementsAre(0, 1));
  buckets.finish_step();
  EXPECT_THAT(paid, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(at::equal(held("c"), like("c", 1)));
}

TEST_F(Buckets, ALateGradientIsRefused) {
  GradientBuckets buckets = make(1);
  buckets.arm();
  deposit(buckets, "d", 1);
  EXPECT_THAT(message_of<UsageError>([&] { deposit(buckets, "d", 1); }),
              HasSubstr("d: a gradient arrives after its bucket has gone out\n  where: bucket 0 of 4"));
}

TEST_F(Buckets, TakeGradientsOfAnyFloatingDtypeAndThoseThatLieThereAlready) {
  GradientBuckets buckets = make(1);
  buckets.deposit(parameters.at("d"), like("d", 1.5).to(at::kBFloat16));
  buckets.deposit(parameters.at("d"), like("d", 0.25).to(at::kDouble));
  EXPECT_TRUE(at::equal(held("d"), like("d", 1.75)));
  held("c").fill_(3);
  buckets.deposit(parameters.at("c"), held("c"));  // autograd added in place to a view that a user kept as .grad
  EXPECT_TRUE(at::equal(held("c"), like("c", 3)));
}

}  // namespace
}  // namespace caravan::testing
