#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/optim/kernels.h"
#include "caravan/registry/registry.h"

namespace caravan::testing::lion_test {
namespace {

constexpr int64_t kCount = 1003;  // no multiple of a vector

/// Values that rise and fall, of which each 7th is 0.
std::vector<float> wave(double frequency) {
  std::vector<float> all(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    all[static_cast<size_t>(i)] = i % 7 == 0 ? 0 : static_cast<float>(std::sin(frequency * static_cast<double>(i)));
  }
  return all;
}

struct Swept {
  std::vector<float> values = wave(0.1), moment = wave(0.37);
  std::vector<kernels::Bf16> copies{std::vector<kernels::Bf16>(kCount)};
};

constexpr kernels::LionStep kStep{.gradient_scale = 0.5, .decay = 0.999, .beta1 = 0.9, .beta2 = 0.99, .lr = 0.01};

/// Steps elements [begin, end).
void step(Swept& to, const std::vector<float>& gradients, int64_t begin, int64_t end) {
  kernels::lion(to.values.data() + begin, gradients.data() + begin, to.moment.data() + begin, to.copies.data() + begin,
                end - begin, kStep);
}

TEST(LionKernel, IsTheFormulaOfThePaper) {
  const std::vector<float> gradients = wave(0.71);
  Swept swept;
  step(swept, gradients, 0, kCount);
  const Swept before;
  for (size_t i = 0; i < kCount; ++i) {
    const double m = before.moment[i], g = 0.5 * gradients[i], direction = 0.9 * m + 0.1 * g;
    const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
    EXPECT_NEAR(swept.values[i], 0.999 * before.values[i] - 0.01 * sign, 1e-6) << i;
    EXPECT_NEAR(swept.moment[i], 0.99 * m + 0.01 * g, 1e-6) << i;
  }
}

/// A sharded model and one on a single rank have the same bits.
TEST(LionKernel, BitsDoNotDependOnTheCut) {
  const std::vector<float> gradients = wave(0.71);
  Swept whole;
  step(whole, gradients, 0, kCount);
  for (const int64_t part : {1, 5, 64, 500}) {
    Swept cut;
    for (int64_t begin = 0; begin < kCount; begin += part) step(cut, gradients, begin, std::min(begin + part, kCount));
    EXPECT_EQ(cut.values, whole.values) << part;
    EXPECT_EQ(cut.moment, whole.moment) << part;
    for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(cut.copies[i].bits, whole.copies[i].bits) << part << " " << i;
  }
}

TEST(Lion, HasItsOwnInitialValues) {
  Setting setting("optimizer", "lion");
  EXPECT_EQ(setting.real("beta2"), 0.99);
  EXPECT_NE(Setting("optimizer", "adamw").real("beta2"), 0.99);
  const Setting same("optimizer", "lion", {{"beta2", 0.99}});
  EXPECT_EQ(setting, same);
  setting.set("beta2", 0.5);
  EXPECT_NE(setting, same);
  setting.choose("adamw");
  EXPECT_EQ(setting.real("beta2"), 0.5) << "what was set stays";
}

}  // namespace
}  // namespace caravan::testing::lion_test
