#pragma once

#include <string>

#include "caravan/comm/work.h"

namespace caravan {

/// The communicator that an operation is checked for.
struct CheckedGroup {
  int rank = 0;
  int size = 1;
  std::string_view name;
  std::string_view backend;
  bool touches_memory = true;
};

/// Throws UsageError if the arguments of one call are invalid by themselves: counts, dtypes, overlap, root, peer.
void check_operation(const Operation& operation, const CheckedGroup& group);

/// `rank 1 of 4 of "tp", techniques/data/ddp.cpp:12`: the `where` of a communicator's error.
std::string where_text(const CheckedGroup& group, const std::source_location& location);

}  // namespace caravan
