#include "caravan/comm/backends/hierarchical/hierarchical_task.h"

namespace caravan::hierarchical {

void HierarchicalTask::then_here(std::function<void()> work) {
  then(levels_.local.get(), [work = std::move(work)](Communicator&) {
    work();
    return Work{};
  });
}

std::byte* HierarchicalTask::scratch(int64_t bytes) {
  memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes)));
  return memory_.back().get();
}

bool HierarchicalTask::advance() {
  bool moved = false;
  while (!finished_ && !failed_) {
    if (!pending_.done()) return moved;
    failed_ = true;
    pending_.wait();  // throws its error
    pending_ = {};
    moved = true;
    if (steps_.empty()) {
      finished_ = true;
    } else {
      const Step step = std::move(steps_.front());
      steps_.pop_front();
      level_ = step.level;
      pending_ = step.begin(*level_);
    }
    failed_ = false;
  }
  return moved;
}

void HierarchicalTask::settle() noexcept {
  try {
    advance();
  } catch (...) {  // the error that ends its communicator, too
  }
}

bool HierarchicalTask::is_pending() {
  bool pending = !pending_.done();
  for (Work& work : others_) pending |= !work.done();
  return pending;
}

void HierarchicalTask::pause(std::chrono::microseconds at_most) {
  if (level_ == nullptr) return;
  dynamic_cast<Level&>(*level_).pause([this] { return pending_.done(); }, at_most);
}

void HierarchicalTask::drain() noexcept {
  others_.push_back(std::move(pending_));
  pending_ = {};
  for (Work& work : others_) {
    try {
      work.wait();
    } catch (...) {  // known already
    }
  }
}

}  // namespace caravan::hierarchical
