#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/backends/shared/shared_communicator.h"
#include "caravan/comm/backends/shared/thread_ranks.h"

namespace caravan {
namespace {

/// A counter that is never destroyed: blocks charged to it may outlive their rank.
MemoryCounter& new_memory_counter() {
  static std::mutex mutex;
  static auto* counters = new std::deque<MemoryCounter>;
  const std::lock_guard lock(mutex);
  return counters->emplace_back();
}

/// The exception to rethrow: the first one that does not merely repeat a peer's failure, else the first one.
class FirstCause {
 public:
  void add(const std::exception_ptr& exception, bool is_echo) {
    const std::lock_guard lock(mutex_);
    auto& place = is_echo ? echo_ : cause_;
    if (place == nullptr) place = exception;
  }
  void rethrow() const {
    if (cause_ != nullptr) std::rethrow_exception(cause_);
    if (echo_ != nullptr) std::rethrow_exception(echo_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_;
  std::exception_ptr echo_;
};

using Body = std::function<void(const std::shared_ptr<Communicator>&)>;

void run_rank(std::shared_ptr<shared::SharedEngine> engine, const Body& body, FirstCause& failure) {
  const MemoryScope memory(new_memory_counter());
  auto world = shared::SharedCommunicator::make_world(std::move(engine));
  try {
    body(world);
  } catch (const PeerFailure& exception) {
    failure.add(std::current_exception(), true);
    world->abort(exception.what());
  } catch (const std::exception& exception) {
    failure.add(std::current_exception(), false);
    world->abort(exception.what());
  } catch (...) {
    failure.add(std::current_exception(), false);
    world->abort("an unknown exception");
  }
}

}  // namespace

void run_thread_ranks(int num_ranks, const Body& body, const CommOptions& options) {
  if (num_ranks < 1) {
    throw UsageError(
        {.op = "run_thread_ranks", .fact = fmt::format("cannot run {} ranks", num_ranks), .action = "give 1 or more"});
  }
  const auto segment = shared::Segment::create_private(num_ranks);
  if (num_ranks > 1) segment->take_slot();  // slot 0: the world
  std::vector<std::shared_ptr<shared::SharedEngine>> engines;
  for (int rank = 0; rank < num_ranks; ++rank) {
    engines.push_back(std::make_shared<shared::SharedEngine>(segment, rank, "thread", options, nullptr));
  }
  FirstCause failure;
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(std::move(engines[static_cast<size_t>(rank)]), body, failure); });
    }
  } catch (const std::system_error& exception) {
    const std::string fact =
        fmt::format("cannot start thread {} of {}: {}", threads.size(), num_ranks, exception.what());
    failure.add(std::make_exception_ptr(ResourceError(
                    {.op = "run_thread_ranks", .fact = fact, .action = "use fewer ranks, or raise ulimit -u"})),
                false);
    engines[threads.size()]->abort(static_cast<int>(threads.size()), fact);
  }
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace caravan
