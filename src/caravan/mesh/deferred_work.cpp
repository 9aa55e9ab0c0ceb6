#include "caravan/mesh/deferred_work.h"

#include <utility>

namespace caravan {

void DeferredWork::run_all() {
  while (!queue_.empty()) run(1);
}

void DeferredWork::run(size_t count) {
  for (; count > 0 && !queue_.empty(); --count) {
    const std::function<void()> work = std::move(queue_.front().work);
    queue_.pop_front();  // before it runs: it may push, clear or throw
    work();
  }
}

}  // namespace caravan
