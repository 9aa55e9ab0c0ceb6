#include "caravan/comm/c10d/queue.h"

#include <algorithm>
#include <map>
#include <sched.h>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGracePeriod{1000};  // to complete what is outstanding when a group is shut down
constexpr int kYields = 64;

void pause(int idle) {
  if (idle < kYields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// One for all communicators split from one world, which share its recorder: any of them progresses what is outstanding
/// on the others.
std::shared_ptr<std::mutex> mutex_of_world(const Communicator& communicator) {
  static std::mutex guard;
  static std::map<const FlightRecorder*, std::weak_ptr<std::mutex>> mutexes;
  const std::lock_guard lock(guard);
  std::erase_if(mutexes, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<std::mutex>& entry = mutexes[communicator.recorder().get()];
  auto mutex = entry.lock();
  if (mutex == nullptr) entry = mutex = std::make_shared<std::mutex>();
  return mutex;
}

}  // namespace

C10dQueue::C10dQueue(std::shared_ptr<Communicator> communicator, milliseconds timeout,
                     std::shared_ptr<C10dProgress> progress)
    : timeout_(timeout),
      progress_(std::move(progress)),
      mutex_(mutex_of_world(*communicator)),
      communicator_(std::move(communicator)),
      messages_(std::make_unique<C10dMessages>(*communicator_)) {}

C10dQueue::~C10dQueue() { close(); }

Communicator& C10dQueue::communicator() {
  if (communicator_ != nullptr) return *communicator_;
  throw UsageError({.op = "c10d",
                    .fact = "the process group was shut down",
                    .action = "call destroy_process_group() after the last collective"});
}

c10::intrusive_ptr<C10dWork> C10dQueue::make_work(C10dWork::Call call) {
  return c10::make_intrusive<C10dWork>(shared_from_this(), communicator().rank(), num_issued_, std::move(call));
}

void C10dQueue::add(const c10::intrusive_ptr<C10dWork>& work) {
  ++num_issued_;
  outstanding_.push_back(work);
  progress_->change_outstanding(1);
}

c10::intrusive_ptr<C10dWork> C10dQueue::issue(C10dWork::Call call, const Start& start) {
  const Lock lock(*mutex_);
  const auto work = make_work(std::move(call));
  work->begin(start(communicator()));
  add(work);
  return work;
}

c10::intrusive_ptr<C10dWork> C10dQueue::send(C10dWork::Call call, const at::Tensor& tensor, int to, int tag) {
  return issue(std::move(call), [&](Communicator&) { return messages_->send(tensor, to, tag); });
}

c10::intrusive_ptr<C10dWork> C10dQueue::receive(C10dWork::Call call, const at::Tensor& tensor, int from, int tag) {
  const Lock lock(*mutex_);
  const auto work = make_work(std::move(call));
  messages_->receive(work, from, tag, tensor);
  add(work);
  return work;
}

void C10dQueue::use(const std::function<void(Communicator&)>& use) {
  const Lock lock(*mutex_);
  use(communicator());
}

bool C10dQueue::is_outstanding(const C10dWork& work) const {
  return std::ranges::any_of(outstanding_, [&](const auto& each) { return each.get() == &work; });
}

bool C10dQueue::others_are_busy() const noexcept {
  return progress_->outstanding() > static_cast<int>(outstanding_.size());
}

void C10dQueue::settle(C10dWork& work) {
  for (messages_->advance(); !work.has_begun_; messages_->advance()) messages_->wait_for_envelope(work);
  work.settle();
  std::erase_if(outstanding_, [&](const auto& each) { return each.get() == &work; });
  progress_->change_outstanding(-1);
}

void C10dQueue::sweep(Works& settled) {
  messages_->advance();
  for (const auto& work : Works(outstanding_)) {
    if (!work->is_done()) continue;
    settle(*work);
    settled.push_back(work);
  }
}

void C10dQueue::try_sweep() {
  Works settled;
  {
    const Lock lock(*mutex_, std::try_to_lock);
    if (!lock.owns_lock() || outstanding_.empty()) return;
    sweep(settled);
  }
  for (const auto& work : settled) work->mark_future();
}

void C10dQueue::poll() {
  try_sweep();
  progress_->drive_others(*this);
}

void C10dQueue::wait(C10dWork& work, milliseconds timeout) {
  Works settled;
  {
    Lock lock(*mutex_);
    if (is_outstanding(work)) {
      const bool is_limited = timeout.count() > 0 && timeout < timeout_;
      poll_until_done(work, is_limited ? timeout : milliseconds(0), lock);
    }
    // Another thread may have settled it in the meantime.
    if (is_outstanding(work)) settle(work);
    if (!outstanding_.empty()) sweep(settled);
  }
  work.mark_future();
  for (const auto& other : settled) other->mark_future();
}

/// Returns when `work` is done, or when the communicator itself can wait for it: nothing else needs to make progress,
/// and only the communicator's time-out applies (`limit` 0). If others need to, polls for the length of that time-out;
/// the communicator then waits once more, and its error names the ranks that are late.
void C10dQueue::poll_until_done(C10dWork& work, milliseconds limit, Lock& lock) {
  const bool is_limited = limit.count() > 0;
  const auto begin = Clock::now();
  for (int idle = 0; is_outstanding(work); ++idle) {
    messages_->advance();
    if (work.is_done()) return;
    if (!is_limited && !others_are_busy() && messages_->can_block_for(work)) return;
    if (Clock::now() - begin >= (is_limited ? limit : timeout_)) {
      if (!is_limited) return fail_late(work);
      throw CommError({.op = work.name(),
                       .fact = fmt::format("Timed out: not complete within the {} s given to wait()",
                                           std::chrono::duration<double>(limit).count()),
                       .where = fmt::format("rank {} of {}", communicator().rank(), communicator().size()),
                       .action = "wait again; the operation continues"});
    }
    lock.unlock();
    progress_->drive_others(*this);
    pause(idle);
    lock.lock();
  }
}

/// Ends a recv from any source, for which the communicator has no time-out.
void C10dQueue::fail_late(C10dWork& work) {
  if (!messages_->takes_any(work)) return;
  const CommError error({.op = work.name(),
                         .fact = fmt::format("Timed out: no message arrived within {} s",
                                             std::chrono::duration<double>(timeout_).count()),
                         .where = fmt::format("rank {} of {}", communicator().rank(), communicator().size()),
                         .action = "send one, or raise the time-out of the process group"});
  messages_->fail(work, std::make_exception_ptr(error));
  abort(error.what());
}

void C10dQueue::drain_futures() {
  for (;;) {
    c10::intrusive_ptr<C10dWork> work;
    {
      const Lock lock(*mutex_);
      const auto found = std::ranges::find_if(outstanding_, [](const auto& each) { return each->expects_future(); });
      if (found == outstanding_.end()) return;
      work = *found;
    }
    wait(*work, milliseconds(0));
  }
}

/// Note [futures]: c10d's Reducer waits for futures instead of works, without telling the back-end. It does so in a
/// callback at the end of the backward pass, which it queues after its last all_reduce. The callback queued here runs
/// before that one, and waits for the works as efficiently as wait() does. A future that is requested outside of a
/// backward pass, or waited for earlier (in the first step of a static graph), is completed by the thread of
/// C10dProgress.
void C10dQueue::expect_future() {
  progress_->watch_futures();
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto queue = weak.lock()) queue->drain_futures();
  });
}

void C10dQueue::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(pointer_mutex_);
  if (communicator_ != nullptr) communicator_->abort(reason);
}

void C10dQueue::close() noexcept {
  Works settled;
  {
    const Lock lock(*mutex_);
    for (const auto end = Clock::now() + kGracePeriod; !outstanding_.empty() && Clock::now() < end; pause(kYields)) {
      sweep(settled);
    }
    if (!outstanding_.empty()) {
      const std::string reason = fmt::format("its process group ended with {} outstanding operations, the first a {}",
                                             outstanding_.size(), outstanding_.front()->name());
      abort(reason);
      settled.insert(settled.end(), outstanding_.begin(), outstanding_.end());
      for (const auto& work : Works(outstanding_)) {
        messages_->fail(*work, std::make_exception_ptr(CommError({.op = work->name(), .fact = reason})));
        settle(*work);
      }
    }
    const std::lock_guard pointer_lock(pointer_mutex_);
    messages_.reset();
    communicator_.reset();  // under the lock of its world
  }
  for (const auto& work : settled) work->mark_future();
}

}  // namespace caravan
