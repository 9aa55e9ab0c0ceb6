#include <gtest/gtest.h>

#include "tests/chosen_cases.h"

/// main() of the test programs that use no tensor.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  caravan::testing::choose_cases(argc, argv);
  return RUN_ALL_TESTS();
}
