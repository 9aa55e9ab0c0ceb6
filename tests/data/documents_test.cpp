#include "caravan/data/files/documents.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/data/windows/sampler.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/support.h"

namespace caravan::documents_test {
namespace {

constexpr int64_t kEnd = 7;

TokenFile tokens_of(const TemporaryFolder& folder, const std::vector<int32_t>& ids) {
  TokenFileWriter writer(folder / "t.tokens", 10);
  writer.append(ids);
  writer.finish(static_cast<int64_t>(ids.size()), {});
  return TokenFile::open(folder / "t.tokens");
}

using Ids = std::vector<int64_t>;

TEST(Documents, BelongToTheirEndAndStartAfterIt) {
  const TemporaryFolder folder;
  const TokenFile tokens = tokens_of(folder, {1, 2, 7, 3, 7, 7, 4, 5, 7});
  for (const bool restarts : {true, false}) {
    const Documents documents(tokens, kEnd, restarts);
    Ids labels{7, 3, 7, 7, 4, 5, 7}, of(7), positions(7);
    documents.mark(1, labels, of, positions);
    EXPECT_EQ(of, (Ids{0, 0, 1, 1, 2, 3, 3}));
    EXPECT_EQ(positions, restarts ? (Ids{0, 1, 0, 1, 0, 0, 1}) : (Ids{0, 1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(labels, (Ids{7, kIgnoredLabel, 7, kIgnoredLabel, kIgnoredLabel, 5, 7}))
        << "an end is a target, what follows is not";
  }
}

TEST(Documents, AreCountedWithoutReadingTheTokens) {
  const TemporaryFolder folder;
  std::vector<int32_t> ids(200'000, 1);  // several pieces of a file
  std::vector<int64_t> ends{0, 5, 6, 65'535, 65'536, 131'072, 199'999};
  for (const int64_t end : ends) ids[static_cast<size_t>(end)] = kEnd;
  const TokenFile tokens = tokens_of(folder, ids);
  const Documents documents(tokens, kEnd, true);
  EXPECT_EQ(documents.num_ends(0, 200'000), 7);
  EXPECT_EQ(documents.num_ends(1, 4), 0);
  EXPECT_EQ(documents.num_ends(5, 2), 2);
  EXPECT_EQ(documents.num_ends(65'535, 1), 1);
  EXPECT_EQ(documents.num_ends(65'536, 65'536), 1);
  EXPECT_EQ(documents.num_ends(65'536, 65'537), 2);
  EXPECT_EQ(documents.num_ends(10, 0), 0);
}

/// Windows of documents have the tokens of windows without; every token but the first of a document is one target.
TEST(Documents, LeaveTheOtherTargetsOfAnEvaluation) {
  const TemporaryFolder folder;
  std::vector<int32_t> ids(61);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i % 6 == 5 || i == 33 ? kEnd : static_cast<int32_t>(i % 5);
  const TokenFile tokens = tokens_of(folder, ids);
  const Documents documents(tokens, kEnd, true);
  const ValidationWindows whole(tokens, 8), packed(tokens, 8, &documents);
  ASSERT_EQ(packed.size(), whole.size());
  const auto count = static_cast<size_t>((whole.size() + 1) * 8);  // and a row of padding
  Ids inputs(count), labels(count), of(count), positions(count), want_inputs(count), want_labels(count);
  whole.fill(0, want_inputs, want_labels);
  packed.fill(0, inputs, labels, of, positions);
  EXPECT_EQ(inputs, want_inputs);
  int64_t num_targets = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool ends = i < 60 && inputs[i] == kEnd;
    EXPECT_EQ(labels[i], ends ? kIgnoredLabel : want_labels[i]) << i;
    num_targets += labels[i] == kIgnoredLabel ? 0 : 1;
    EXPECT_EQ(of[i] == of[i / 8 * 8], positions[i] == static_cast<int64_t>(i % 8)) << i;
  }
  EXPECT_EQ(packed.num_targets(), num_targets);
  EXPECT_LT(num_targets, whole.num_targets());
}

TEST(Documents, RefuseRowsOfDifferentLengths) {
  const TemporaryFolder folder;
  const TokenFile tokens = tokens_of(folder, {1, 2, 7});
  const Documents documents(tokens, kEnd, true);
  Ids labels(3), of(2), positions(3);
  EXPECT_THROW(documents.mark(0, labels, of, positions), InternalError);
}

}  // namespace
}  // namespace caravan::documents_test
