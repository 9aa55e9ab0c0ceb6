#include "caravan/data/windows/sampler.h"

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/support.h"

namespace caravan::sampler_test {
namespace {

/// Token i of the file is i.
TokenFile numbered_tokens(const TemporaryFolder& folder, int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  TokenFileWriter writer(folder / "numbered.tokens", std::max(count, 1));
  writer.append(ids);
  writer.finish(3 * count, {});
  return TokenFile::open(folder / "numbered.tokens");
}

/// The windows of an epoch share no target and are within the text.
TEST(Sampler, VisitsEachWindowOnceAnEpoch) {
  EXPECT_TRUE(rc::check("any text, context and seed", [] {
    const auto context = *rc::gen::inRange<int64_t>(1, 40);
    const auto num_tokens = context + 1 + *rc::gen::inRange<int64_t>(0, 2000);
    const Sampler sampler(num_tokens, context, *rc::gen::arbitrary<uint64_t>());
    const int64_t count = sampler.windows_per_epoch();
    const int64_t epoch = *rc::gen::inRange<int64_t>(0, 4);
    std::set<int64_t> offsets;
    for (int64_t i = 0; i < count; ++i) offsets.insert(sampler.offset(epoch * count + i));
    RC_ASSERT(static_cast<int64_t>(offsets.size()) == count);
    RC_ASSERT(*offsets.begin() >= 0);
    RC_ASSERT(*offsets.rbegin() + context + 1 <= num_tokens);
    for (const int64_t offset : offsets) RC_ASSERT((offset - *offsets.begin()) % context == 0);
    // Fewer than two windows are left out at the ends.
    RC_ASSERT(count * context > num_tokens - 1 - 2 * context);
  }));
}

TEST(Sampler, EpochsDifferInOrderAndPhase) {
  const Sampler sampler(10'000, 16, 7);
  const int64_t count = sampler.windows_per_epoch();
  std::set<int64_t> phases;
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < count; ++i) order.push_back(sampler.offset(epoch * count + i));
    const int64_t first = *std::min_element(order.begin(), order.end());
    phases.insert(first);
    for (int64_t& offset : order) offset -= first;
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 8U);
  EXPECT_GE(phases.size(), 4U);  // eight samples of 32 phases
}

/// Over many epochs every token is an input, and every token except the first is a target.
TEST(Sampler, EpochsTogetherCoverTheText) {
  const Sampler sampler(100, 16, 3);
  std::set<int64_t> inputs;
  for (int64_t k = 0; k < 2000; ++k) {
    for (int64_t t = 0; t < 16; ++t) inputs.insert(sampler.offset(k) + t);
  }
  EXPECT_EQ(inputs.size(), 99U);
}

TEST(Sampler, SeedsDiffer) {
  const Sampler a(10'000, 16, 1);
  const Sampler b(10'000, 16, 2);
  int same = 0;
  for (int64_t k = 0; k < 100; ++k) same += a.offset(k) == b.offset(k) ? 1 : 0;
  EXPECT_LT(same, 10);
}

/// Recorded values: a sampler with another order breaks resuming from existing checkpoints.
TEST(Sampler, OrderIsStableAcrossVersions) {
  const Sampler sampler(1000, 10, 42);
  std::vector<int64_t> offsets;
  for (const int64_t k : {0, 1, 2, 97, 98, 99, 1000, 123456789}) offsets.push_back(sampler.offset(k));
  EXPECT_EQ(sampler.windows_per_epoch(), 98);
  EXPECT_EQ(offsets, (std::vector<int64_t>{934, 544, 744, 384, 255, 655, 63, 945}));
}

TEST(Sampler, ATextOfOneWindowIsThatWindow) {
  const Sampler sampler(17, 16, 1);
  for (const int64_t k : {0, 1, 2, 1000}) EXPECT_EQ(sampler.offset(k), 0);
}

TEST(Sampler, RefusesATextShorterThanAWindow) {
  const auto message = message_of<DataError>([] { Sampler(16, 16, 1); });
  EXPECT_NE(message.find("has 16 tokens, but a window of context 16 needs 17"), std::string::npos) << message;
  EXPECT_THROW(Sampler(0, 16, 1), DataError);
  EXPECT_THROW(Sampler(100, 0, 1), ShapeError);
}

/// Token i is i: each of 1 .. N-1 is a label exactly once, for the input before it.
TEST(ValidationWindows, CountEveryTargetOnce) {
  const TemporaryFolder folder;
  for (const int32_t count : {2, 8, 9, 10, 16, 17, 18, 100}) {
    const TokenFile tokens = numbered_tokens(folder, count);
    const ValidationWindows windows(tokens, 8);
    EXPECT_EQ(windows.num_targets(), count - 1);
    EXPECT_EQ(windows.text_bytes(), 3 * count);
    std::vector<int64_t> inputs(static_cast<size_t>(windows.size() * 8 + 16));  // two rows of padding
    std::vector<int64_t> labels(inputs.size());
    windows.fill(0, inputs, labels);
    std::vector<int64_t> targets;
    for (size_t i = 0; i < labels.size(); ++i) {
      EXPECT_TRUE(labels[i] == inputs[i] + 1 || (labels[i] == kIgnoredLabel && inputs[i] == 0));
      if (labels[i] != kIgnoredLabel) targets.push_back(labels[i]);
    }
    std::vector<int64_t> expected(static_cast<size_t>(count - 1));
    std::iota(expected.begin(), expected.end(), 1);
    EXPECT_EQ(targets, expected);
    EXPECT_LT(std::count(labels.end() - 24, labels.end(), kIgnoredLabel), 24) << "the last window is empty";
  }
}

/// Tokens 25, 50 and 75 of 100 end a document; what follows is no target, nor are its bytes those of one.
TEST(ValidationWindows, BytesAreThoseOfTargets) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 100);
  const Documents documents(
      tokens, [](int64_t id) { return id > 0 && id % 25 == 0; }, /*restarts=*/true);
  const ValidationWindows windows(tokens, 8, &documents);
  EXPECT_EQ(windows.num_targets(), 99 - 3);
  EXPECT_EQ(windows.text_bytes(), std::llround(300.0 * 96 / 99));
}

TEST(ValidationWindows, RowsAreIndependentOfTheRequests) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 100);
  const ValidationWindows windows(tokens, 8);
  std::vector<int64_t> inputs(104);
  std::vector<int64_t> labels(104);
  windows.fill(0, inputs, labels);
  for (int64_t w = 0; w < windows.size(); ++w) {
    std::vector<int64_t> one(8);
    std::vector<int64_t> targets(8);
    windows.fill(w, one, targets);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), inputs.begin() + w * 8));
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), labels.begin() + w * 8));
  }
}

/// Token i is i: the context of a target is the part of its row before it.
TEST(ValidationWindows, OverlappingOnesCountEveryTargetOnceWithAtLeastTheOverlapBeforeIt) {
  const TemporaryFolder folder;
  for (const int32_t count : {2, 8, 9, 10, 11, 12, 17, 100}) {
    const TokenFile tokens = numbered_tokens(folder, count);
    for (const int64_t stride : {1, 3, 7, 8}) {
      const ValidationWindows windows(tokens, 8, nullptr, stride);
      EXPECT_EQ(windows.num_targets(), count - 1);
      std::vector<int64_t> inputs(static_cast<size_t>(windows.size() * 8 + 16));  // two rows of padding
      std::vector<int64_t> labels(inputs.size());
      windows.fill(0, inputs, labels);
      std::vector<int64_t> targets;
      for (size_t i = 0; i < labels.size(); ++i) {
        if (labels[i] == kIgnoredLabel) continue;
        EXPECT_EQ(labels[i], inputs[i] + 1);
        EXPECT_EQ(inputs[i / 8 * 8], labels[i] - 1 - static_cast<int64_t>(i % 8)) << "its row has the text before it";
        EXPECT_GE(i % 8, i < 8 ? 0U : static_cast<size_t>(8 - stride));
        targets.push_back(labels[i]);
      }
      std::vector<int64_t> expected(static_cast<size_t>(count - 1));
      std::iota(expected.begin(), expected.end(), 1);
      EXPECT_EQ(targets, expected) << count << " tokens, stride " << stride;
      EXPECT_LT(std::count(labels.end() - 24, labels.end(), kIgnoredLabel), 24) << "the last window is empty";
    }
  }
}

TEST(ValidationWindows, RefuseATextOfOneToken) {
  const TemporaryFolder folder;
  const TokenFile one = numbered_tokens(folder, 1);
  EXPECT_NE(message_of<DataError>([&] { ValidationWindows(one, 8); }).find("1 tokens"), std::string::npos);
  const TokenFile two = numbered_tokens(folder, 2);
  EXPECT_THROW(ValidationWindows(two, 0), ShapeError);
  EXPECT_THROW(ValidationWindows(two, 8, nullptr, 0), ShapeError);
  EXPECT_THROW(ValidationWindows(two, 8, nullptr, 9), ShapeError);
}

}  // namespace
}  // namespace caravan::sampler_test
