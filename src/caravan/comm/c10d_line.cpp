#include "caravan/comm/c10d_line.h"

#include <algorithm>
#include <sched.h>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarewell{1000};  // for what is outstanding when a group ends
constexpr int kYields = 64;

void pause(int idle) {
  if (idle < kYields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

C10dLine::C10dLine(std::shared_ptr<Communicator> communicator, milliseconds timeout,
                   std::shared_ptr<C10dProgress> progress)
    : timeout_(timeout), progress_(std::move(progress)), communicator_(std::move(communicator)) {}

C10dLine::~C10dLine() { close(); }

Communicator& C10dLine::communicator() {
  if (communicator_ != nullptr) return *communicator_;
  throw UsageError({.op = "c10d",
                    .fact = "the process group was shut down",
                    .action = "call destroy_process_group() after the last collective"});
}

c10::intrusive_ptr<C10dWork> C10dLine::issue(C10dWork::Call call, const Start& start) {
  const Lock lock(mutex_);
  Communicator& comm = communicator();
  std::vector<Work> parts = start(comm);
  auto work = c10::make_intrusive<C10dWork>(shared_from_this(), comm.rank(), std::move(call));
  work->parts_ = std::move(parts);
  outstanding_.push_back(work);
  progress_->change_outstanding(1);
  return work;
}

void C10dLine::use(const std::function<void(Communicator&)>& use) {
  const Lock lock(mutex_);
  use(communicator());
}

bool C10dLine::is_outstanding(const C10dWork& work) const {
  return std::ranges::any_of(outstanding_, [&](const auto& each) { return each.get() == &work; });
}

bool C10dLine::others_are_busy() const noexcept {
  return progress_->outstanding() > static_cast<int>(outstanding_.size());
}

bool C10dLine::is_done(C10dWork& work) const { return std::ranges::all_of(work.parts_, &Work::done); }

void C10dLine::settle(C10dWork& work) {
  std::exception_ptr error;
  for (Work& part : work.parts_) {
    try {
      part.wait();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // the outputs may be leaves
    if (error == nullptr && work.call_.finish) work.call_.finish();
  } catch (...) {
    error = std::current_exception();
  }
  work.settle(std::move(error));
  std::erase_if(outstanding_, [&](const auto& each) { return each.get() == &work; });
  progress_->change_outstanding(-1);
}

void C10dLine::sweep(Works& settled) {
  for (const auto& work : Works(outstanding_)) {
    if (!is_done(*work)) continue;
    settle(*work);
    settled.push_back(work);
  }
}

void C10dLine::try_sweep() {
  Works settled;
  {
    const Lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || outstanding_.empty()) return;
    sweep(settled);
  }
  for (const auto& work : settled) work->mark_future();
}

void C10dLine::poll() {
  try_sweep();
  progress_->drive_others(*this);
}

void C10dLine::wait(C10dWork& work, milliseconds timeout) {
  Works settled;
  {
    Lock lock(mutex_);
    if (is_outstanding(work)) {
      const bool is_limited = timeout.count() > 0 && timeout < timeout_;
      poll_until_done(work, is_limited ? timeout : milliseconds(0), lock);
    }
    // Another thread may have settled it meanwhile.
    if (is_outstanding(work)) settle(work);
    if (!outstanding_.empty()) sweep(settled);
  }
  work.mark_future();
  for (const auto& other : settled) other->mark_future();
}

/// Returns when `work` is done or can be waited for in the communicator itself: nothing else is to be driven, and no
/// time-out but its own (`limit` 0) counts. With others to drive, the communicator's own wait, which names the ranks
/// that are late, comes after its time-out has passed here once.
void C10dLine::poll_until_done(C10dWork& work, milliseconds limit, Lock& lock) {
  const bool is_limited = limit.count() > 0;
  const auto begin = Clock::now();
  for (int idle = 0; is_outstanding(work) && !is_done(work); ++idle) {
    if (!is_limited && !others_are_busy()) return;
    if (Clock::now() - begin >= (is_limited ? limit : timeout_)) {
      if (!is_limited) return;
      throw CommError({.op = work.title(),
                       .fact = fmt::format("not complete within the {} s given to wait()",
                                           std::chrono::duration<double>(limit).count()),
                       .where = fmt::format("rank {} of {}", communicator().rank(), communicator().size()),
                       .action = "wait again; the operation goes on"});
    }
    lock.unlock();
    progress_->drive_others(*this);
    pause(idle);
    lock.lock();
  }
}

void C10dLine::drain_futures() {
  for (;;) {
    c10::intrusive_ptr<C10dWork> work;
    {
      const Lock lock(mutex_);
      const auto found = std::ranges::find_if(outstanding_, [](const auto& each) { return each->expects_future(); });
      if (found == outstanding_.end()) return;
      work = *found;
    }
    wait(*work, milliseconds(0));
  }
}

/// Note [futures]: c10d's Reducer waits for futures, not for works, and nothing tells us when it starts to. It does so
/// in a callback at the end of backward, queued after its last all_reduce, hence after ours, which waits for them as
/// efficiently as any wait. Where a future is asked for elsewhere, or waited for earlier (the first step of a static
/// graph), the thread of C10dProgress completes it.
void C10dLine::expect_future() {
  progress_->watch_futures();
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto line = weak.lock()) line->drain_futures();
  });
}

void C10dLine::abort(std::string_view reason) noexcept {
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard lock(pointer_mutex_);
    communicator = communicator_;
  }
  if (communicator != nullptr) communicator->abort(reason);
}

void C10dLine::close() noexcept {
  Works settled;
  std::shared_ptr<Communicator> communicator;
  {
    const Lock lock(mutex_);
    for (const auto end = Clock::now() + kFarewell; !outstanding_.empty() && Clock::now() < end; pause(kYields)) {
      sweep(settled);
    }
    if (!outstanding_.empty()) {
      abort(fmt::format("its process group ended with {} outstanding operations, the first a {}", outstanding_.size(),
                        outstanding_.front()->title()));
      settled.insert(settled.end(), outstanding_.begin(), outstanding_.end());
      for (const auto& work : Works(outstanding_)) settle(*work);
    }
    const std::lock_guard pointer_lock(pointer_mutex_);
    communicator = std::move(communicator_);
  }
  communicator.reset();
  for (const auto& work : settled) work->mark_future();
}

}  // namespace caravan
