#include "caravan/data/tasks/span_task.h"

#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/task_support.h"

namespace caravan::span_task_test {
namespace {

using namespace testing;  // NOLINT: helpers of tests
using ::testing::HasSubstr;

constexpr int64_t kStart = 0, kEnd = 1, kSentinel = 110;

/// random_spans_helper of T5's preprocessors.py, run with Python: window, source and target for a length of inputs.
TEST(SpanLengths, AreThoseOfT5) {
  struct Case {
    int64_t inputs, window, source, target;
  };
  for (const Case& of : std::vector<Case>{{14, 14, 14, 4},
                                          {20, 21, 20, 5},
                                          {32, 34, 32, 8},
                                          {64, 70, 64, 14},
                                          {100, 110, 100, 22},
                                          {114, 126, 114, 26},
                                          {128, 141, 128, 29},
                                          {256, 284, 256, 58},
                                          {500, 554, 500, 112},
                                          {512, 568, 512, 114},
                                          {1000, 1110, 1000, 222},
                                          {1024, 1137, 1024, 229},
                                          {4096, 4550, 4096, 910}}) {
    const SpanLengths lengths = span_lengths(of.inputs, {});
    EXPECT_EQ(lengths.window, of.window) << of.inputs;
    EXPECT_EQ(lengths.source, of.source);
    EXPECT_EQ(lengths.target, of.target);
  }
}

/// The same formula, written down again, for all sizes and other rates. Its results of fewer than one span or
/// one token left out are not compared: ours have at least one.
TEST(SpanLengths, FollowTheFormulaForAllSizes) {
  for (const auto& [rate, mean] : std::vector<std::pair<double, double>>{{0.15, 3}, {0.15, 8}, {0.3, 3}, {0.5, 4}}) {
    const auto lengths_of = [rate = rate, mean = mean](int64_t tokens) {
      const double noise = std::nearbyint(static_cast<double>(tokens) * rate);
      const double spans = std::nearbyint(noise / mean);
      return std::array<double, 3>{static_cast<double>(tokens) - noise + spans + 1, noise + spans + 1, spans};
    };
    int64_t num_compared = 0;
    for (int64_t source = 3; source < 700; ++source) {
      const SpanLengths ours = span_lengths(source, {.rate = rate, .mean_length = mean});
      EXPECT_EQ(ours.source, source) << rate << ' ' << mean;
      EXPECT_EQ(ours.target, ours.num_noise + ours.num_spans + 1);
      EXPECT_GE(ours.num_spans, 1);
      EXPECT_LE(ours.num_spans, ours.num_noise);
      EXPECT_LE(ours.num_spans, ours.window - ours.num_noise);
      int64_t tokens = source;
      while (lengths_of(tokens + 1)[0] <= static_cast<double>(source)) ++tokens;
      const auto [inputs, targets, spans] = lengths_of(tokens);
      if (spans < 1 || inputs != static_cast<double>(source)) continue;
      ++num_compared;
      EXPECT_EQ(ours.window, tokens) << source << ' ' << rate << ' ' << mean;
      EXPECT_EQ(static_cast<double>(ours.target), targets);
    }
    EXPECT_GT(num_compared, 640) << rate << ' ' << mean;
  }
  EXPECT_EQ(span_lengths(3, {}), (SpanLengths{.window = 2, .num_noise = 1, .num_spans = 1, .source = 3, .target = 3}));
  EXPECT_THROW(span_lengths(2, {}), ShapeError);
}

/// Source and target of a row, without padding.
struct Corrupted {
  Ids source, target;
};

class Spans : public ::testing::Test {
 protected:
  static constexpr int64_t kSource = 64, kContext = 20;

  Spans() : tokenizer(word_tokenizer(40)) {
    std::vector<int32_t> ids(3000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(10 + i * 37 % 100);
    tokens.emplace(token_file(folder, ids, tokenizer.vocab_size()));
    task = std::make_shared<const SpanTask>(tokenizer, kSource, kContext, SpanRule{}, kStart);
  }

  WindowTaskRows rows(uint64_t seed = 3) const {
    return {TrainWindows({{&*tokens}}, task->window(), seed), task, seed};
  }
  static Corrupted corrupted(const FilledRows& row) {
    Corrupted result{.source = part_of(row.ids, 0, kSource), .target = part_of(row.labels, kSource, kContext)};
    while (!result.target.empty() && result.target.back() == kIgnoredLabel) result.target.pop_back();
    return result;
  }
  /// The window again: each sentinel of the source is replaced by what follows it in the target.
  static Ids restored(const Corrupted& of) {
    std::map<int64_t, Ids> spans;
    int64_t sentinel = -1;
    for (const int64_t id : of.target) {
      if (id >= kSentinel) {
        sentinel = id;
      } else if (id != kEnd) {
        spans[sentinel].push_back(id);
      }
    }
    Ids window;
    for (const int64_t id : of.source) {
      if (id < kSentinel && id != kEnd) window.push_back(id);
      if (id >= kSentinel) window.insert(window.end(), spans.at(id).begin(), spans.at(id).end());
    }
    return window;
  }

  const Tokenizer tokenizer;
  const TemporaryFolder folder;
  std::optional<TokenFile> tokens;
  std::shared_ptr<const SpanTask> task;
};

TEST_F(Spans, SourceAndTargetAreTheWindow) {
  const WindowTaskRows spans = rows();
  const Sampler sampler(tokens->size(), task->window(), 3);
  EXPECT_EQ(spans.shape().length, kSource + kContext);
  EXPECT_EQ(spans.shape().num_sources, kSource);
  EXPECT_FALSE(spans.shape().has_documents) << "sources are full";
  for (int64_t sample = 0; sample < 200; ++sample) {
    const FilledRows row = filled(spans, sample, 1);
    const Corrupted of = corrupted(row);
    Ids window(static_cast<size_t>(task->window()));
    tokens->read(sampler.offset(sample), window);
    EXPECT_EQ(restored(of), window);
    EXPECT_EQ(of.source.back(), kEnd);
    EXPECT_EQ(of.target.back(), kEnd);
    EXPECT_EQ(std::ssize(of.target), task->lengths().target);
    EXPECT_EQ(spans.num_targets(sample, 1), task->lengths().target);
    EXPECT_EQ(part_of(row.labels, 0, kSource), Ids(kSource, kIgnoredLabel));
    // The decoder reads its own target, shifted right.
    Ids inputs{kStart};
    inputs.insert(inputs.end(), of.target.begin(), of.target.end() - 1);
    inputs.resize(kContext, 0);
    EXPECT_EQ(part_of(row.ids, kSource, kContext), inputs);
  }
}

/// Sentinels come in order, no two next to each other; the window begins with text.
TEST_F(Spans, AreSeparatedAndNumbered) {
  const WindowTaskRows spans = rows();
  std::map<int64_t, int64_t> lengths;
  for (int64_t sample = 0; sample < 500; ++sample) {
    const Corrupted of = corrupted(filled(spans, sample, 1));
    for (const Ids& part : {of.source, of.target}) {
      int64_t next = kSentinel;
      for (size_t t = 0; t < part.size(); ++t) {
        if (part[t] < kSentinel) continue;
        EXPECT_EQ(part[t], next++);
        EXPECT_LT(part[t + 1], kSentinel);
      }
      EXPECT_EQ(next - kSentinel, task->lengths().num_spans);
    }
    EXPECT_LT(of.source.front(), kSentinel);
    int64_t length = -1;
    for (size_t t = 1; t < of.target.size(); ++t) {
      ++length;
      if (of.target[t] < kSentinel && of.target[t] != kEnd) continue;
      ++lengths[length];
      length = -1;
    }
  }
  // 10 tokens in 3 spans: of all 36 partitions, 8, 7, .. 1 begin with a span of 1, 2, .. 8 tokens. 1500 spans; 6
  // standard deviations.
  ASSERT_EQ(task->lengths().num_noise, 10);
  ASSERT_EQ(task->lengths().num_spans, 3);
  for (int64_t length = 1; length <= 8; ++length) {
    const double share = static_cast<double>(9 - length) / 36;
    EXPECT_NEAR(static_cast<double>(lengths[length]), 1500 * share, 6 * std::sqrt(1500 * share)) << length;
  }
}

TEST_F(Spans, DependOnTheSampleAlone) {
  const FilledRows whole = filled(rows(), 24, 12);
  Ids joined;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const FilledRows part = filled(rows(), 24 + rank * 3, 3);
    joined.insert(joined.end(), part.ids.begin(), part.ids.end());
  }
  EXPECT_EQ(joined, whole.ids);
  EXPECT_NE(filled(rows(4), 24, 12).ids, whole.ids);
  std::set<Ids> seen;
  for (int64_t sample = 0; sample < 100; ++sample) {
    Ids window(static_cast<size_t>(task->window()), 10);
    Ids ids(kSource + kContext), labels(kSource + kContext);
    task->fill(window, 3, sample, {.ids = ids, .labels = labels});
    seen.insert(ids);
  }
  EXPECT_GT(seen.size(), 95U) << "the same window has other spans each time";
}

TEST_F(Spans, ValidationHasFullRows) {
  const WindowTaskValidation validation(*tokens, task);
  EXPECT_EQ(validation.size(), (3000 + task->window() - 1) / task->window());
  EXPECT_EQ(validation.num_targets(), validation.size() * task->lengths().target);
  EXPECT_EQ(filled(validation, validation.size(), 1).labels, Ids(kSource + kContext, kIgnoredLabel));
}

TEST_F(Spans, SmallestRow) {
  const SpanTask smallest(tokenizer, 3, 3, {}, kStart);
  Ids ids(6), labels(6);
  smallest.fill(Ids{20, 21}, 1, 0, {.ids = ids, .labels = labels});
  EXPECT_EQ(ids, (Ids{20, 110, 1, 0, 110, 21}));
  EXPECT_EQ(labels, (Ids{-100, -100, -100, 110, 21, 1}));
}

TEST_F(Spans, RefuseWhatDoesNotFit) {
  const auto message = [&](const Tokenizer& of, int64_t source, int64_t context) {
    return message_of<UsageError>([&] { SpanTask(of, source, context, {}, kStart); });
  };
  EXPECT_THAT(message(tokenizer, 64, 13), AllOf(HasSubstr("model.context: is 13"), HasSubstr("use at least 14")));
  EXPECT_THAT(message(word_tokenizer(2), 64, 20), HasSubstr("no <extra_id_2>"));
  EXPECT_THAT(message(Tokenizer::bytes(), 64, 20), HasSubstr("end-of-text"));
  EXPECT_THAT(message(tokenizer, 2, 20), HasSubstr("model.source_context: is 2"));
}

}  // namespace
}  // namespace caravan::span_task_test
