#include <gtest/gtest.h>

#include "caravan/base/runtime.h"
#include "tests/chosen_cases.h"
#include "tests/needs.h"

/// main() of the test programs that use tensors: one intra-op thread, memory counted per rank, as in caravan-rank.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  caravan::testing::choose_cases(argc, argv);
  // Without these, a recipe or strategy that names no hook and no recompute would get one.
  caravan::testing::need_in_every_case({"no_hook", "no_recompute"});
  const caravan::Runtime runtime({.intra_op_threads = 1});
  return RUN_ALL_TESTS();
}
