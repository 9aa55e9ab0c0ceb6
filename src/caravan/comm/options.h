#pragma once

#include <chrono>

namespace caravan {

struct CommOptions {
  std::chrono::milliseconds timeout{300'000};  ///< of every wait
  bool check = true;  ///< gloo, mpi: compare the ranks' calls before each one (thread and shm always do)
};

}  // namespace caravan
