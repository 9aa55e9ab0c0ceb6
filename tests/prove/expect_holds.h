#pragma once

#include <exception>

#include <gtest/gtest.h>

#include "caravan/prove/prove.h"

namespace caravan::testing {

/// Fails unless the case holds; also if it cannot be proved, so that the cases after it run.
inline void expect_holds(const ProveCase& what) {
  SCOPED_TRACE(what.to_string());
  try {
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace caravan::testing
