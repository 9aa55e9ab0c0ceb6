#include <gtest/gtest.h>

/// main() of the tests that use no tensor.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
