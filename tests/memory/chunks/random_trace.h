#pragma once

#include <algorithm>
#include <vector>

#include <rapidcheck.h>

#include "caravan/memory/chunks/chunk_trace.h"

namespace caravan::testing {

/// A valid trace: every moment uses one or two chunks, some on the host, with a budget of its own.
inline ChunkTrace random_trace(int num_chunks, int num_moments) {
  ChunkTrace trace;
  for (int c = 0; c < num_chunks; ++c) trace.chunk_bytes.push_back(*rc::gen::inRange<int64_t>(1, 4));
  std::vector<bool> is_consumed(static_cast<size_t>(num_chunks), false);
  for (int moment = 0; moment < num_moments; ++moment) {
    int64_t used = 0;
    const int first = *rc::gen::inRange(0, num_chunks);
    const int count = *rc::gen::inRange(1, 3);
    for (int i = 0; i < std::min(count, num_chunks); ++i) {
      ChunkUse use{.moment = moment,
                   .chunk = (first + i) % num_chunks,
                   .access = *rc::gen::element(ChunkAccess::read, ChunkAccess::read, ChunkAccess::modify,
                                               ChunkAccess::modify, ChunkAccess::overwrite, ChunkAccess::consume),
                   .is_on_host = *rc::gen::inRange(0, 6) == 0};
      const auto chunk = static_cast<size_t>(use.chunk);
      if (is_consumed[chunk]) use.access = ChunkAccess::overwrite;
      is_consumed[chunk] = use.access == ChunkAccess::consume;
      if (!use.is_on_host) used += trace.chunk_bytes[chunk];
      trace.uses.push_back(use);
    }
    trace.budget_bytes.push_back(used + *rc::gen::inRange<int64_t>(0, 6));
  }
  return trace;
}

}  // namespace caravan::testing
