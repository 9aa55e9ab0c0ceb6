#include "caravan/base/parallel_for.h"

#include <atomic>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

int num_loop_threads() {
#ifdef _OPENMP
  thread_local bool is_kept = false;
  if (!is_kept) {
    is_kept = true;
    const int own = at::get_num_threads();
    at::internal::lazy_init_num_threads();
    if (omp_get_max_threads() != own) omp_set_num_threads(own);
  }
#endif
  return at::in_parallel_region() ? 1 : at::get_num_threads();
}

void check_num_threads() {
#ifdef _OPENMP
  const int wanted = num_loop_threads();
  std::atomic<int> parts = 0;
  parallel_for(0, wanted, 1, [&](int64_t, int64_t) { ++parts; });
  if (parts == wanted) return;
  throw UsageError(
      {"threads", "",
       fmt::format("OpenMP gives {} of {} threads: OMP_THREAD_LIMIT or OMP_DYNAMIC limits them", parts.load(), wanted),
       "", fmt::format("unset them, or set comm.threads_per_rank = {}", parts.load())});
#endif
}

}  // namespace caravan
