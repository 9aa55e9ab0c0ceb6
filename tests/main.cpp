#include <gtest/gtest.h>

#include "caravan/base/runtime.h"

/// main() of every test that uses tensors: one intra-op thread, memory counted per rank, as the command runs a rank.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const caravan::Runtime runtime({.intra_op_threads = 1});
  return RUN_ALL_TESTS();
}
