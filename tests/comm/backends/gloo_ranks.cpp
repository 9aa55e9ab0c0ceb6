#include "tests/comm/backends/gloo_ranks.h"

#include "caravan/comm/backends/gloo/gloo.h"
#include "tests/comm/world/world_threads.h"

namespace caravan::testing {

void run_gloo_ranks(int num_ranks, const RankBody& body, const CommOptions& options) {
  run_thread_worlds(num_ranks, body, options, make_gloo_world);
}

void run_unchecked_gloo_ranks(int num_ranks, const RankBody& body, const CommOptions& options) {
  CommOptions unchecked = options;
  unchecked.check = false;
  run_gloo_ranks(num_ranks, body, unchecked);
}

}  // namespace caravan::testing
