#pragma once

#include <chrono>
#include <memory>

namespace caravan {

namespace algorithms {
class SelectionTable;
}

struct CommOptions {
  std::chrono::milliseconds timeout{300'000};  ///< of every wait, after which it throws CommError
  bool check = true;  ///< compare the labels of messages; gloo, mpi: also the ranks' calls (thread, shm: always)
  /// gloo, mpi: the algorithms of collectives, equal on every rank; null: the built-in table. See selection.h.
  std::shared_ptr<const algorithms::SelectionTable> algorithms{};
};

}  // namespace caravan
