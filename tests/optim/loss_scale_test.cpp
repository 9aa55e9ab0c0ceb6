#include "caravan/optim/loss_scale.h"

#include <gtest/gtest.h>

namespace caravan::testing::loss_scale_test {
namespace {

TEST(LossScale, IsHalvedByAnOverflowAndDoubledAfter2000Steps) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_FALSE(scale.update(false));
  EXPECT_TRUE(scale.has_backed_off());
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_EQ(scale.num_skipped(), 1);
  for (int step = 0; step < 1999; ++step) EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 65536);
  for (int step = 0; step < 1999; ++step) scale.update(true);
  scale.update(false);  // begins the count anew
  for (int step = 0; step < 1999; ++step) scale.update(true);
  EXPECT_EQ(scale.value(), 32768);
}

TEST(LossScale, StopsIfNoSmallerOneHelps) {
  LossScale scale;
  int num_skipped = 0;
  while (!scale.update(false) && scale.has_backed_off()) ++num_skipped;
  EXPECT_EQ(num_skipped, 16);
  EXPECT_EQ(scale.value(), 1);
  LossScale fixed(128);
  EXPECT_FALSE(fixed.is_dynamic());
  EXPECT_FALSE(fixed.update(false));
  EXPECT_FALSE(fixed.has_backed_off());
  EXPECT_EQ(fixed.value(), 128);
}

TEST(LossScale, ContinuesFromItsState) {
  LossScale one;
  one.update(false);
  for (int step = 0; step < 1500; ++step) one.update(true);
  LossScale other;
  other.set_state(one.state());
  for (int step = 0; step < 500; ++step) other.update(true);
  EXPECT_EQ(other.value(), 65536);
  EXPECT_EQ(other.num_skipped(), 1);
}

}  // namespace
}  // namespace caravan::testing::loss_scale_test
