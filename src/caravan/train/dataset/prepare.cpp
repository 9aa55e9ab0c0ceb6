#include "caravan/train/dataset/prepare.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/train/agreement.h"

namespace caravan {
namespace {

/// Thrown to end the work of a thread. Never leaves this file.
struct Cancelled {};

/// A thread that does the work, and its state as seen by the waiting thread.
class Worker final : private DataObserver {
 public:
  explicit Worker(const std::function<void(DataObserver&)>& work) : thread_([this, work] { run(work); }) {}
  ~Worker() override {
    cancel();
    if (thread_.joinable()) thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Waits for the end of the work, at most `patience`. Returns whether it has ended.
  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return end_.wait_for(lock, patience, [this] { return has_ended_; });
  }
  DataProgress progress() {
    const std::lock_guard lock(mutex_);
    return progress_;
  }
  /// The exception thrown by the work, which has ended.
  const std::exception_ptr& error() const { return error_; }

 private:
  void run(const std::function<void(DataObserver&)>& work) {
    try {
      work(*this);
    } catch (const Cancelled&) {
    } catch (...) {
      error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    end_.notify_all();
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  void begin(std::string_view stage, int64_t total) override {
    const std::lock_guard lock(mutex_);
    progress_ = {.stage = stage, .total = total};
  }
  void advance(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) throw Cancelled();
    progress_.done += bytes;
  }

  std::mutex mutex_;
  std::condition_variable end_;
  bool has_ended_ = false;
  bool is_cancelled_ = false;
  DataProgress progress_;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

/// The first line of its message: the other ranks repeat it.
std::string summary_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    const std::string text = exception.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "unknown exception";
  }
}

/// Throws this rank's error if it has one, else the first error of a peer.
[[noreturn]] void throw_failure(Communicator& world, const std::exception_ptr& error) {
  const std::vector<std::string> failures = gather_texts(world, error ? summary_of(error) : "", "data preparation");
  if (error) std::rethrow_exception(error);
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  throw PeerFailure({"train", "data preparation", fmt::format("rank {} failed: {}", first - failures.begin(), *first),
                     "", "see the error of that rank"},
                    FailureScope::world);
}

}  // namespace

void work_jointly(Communicator& world, const std::function<void(DataObserver&)>& work, const JointWork& options) {
  std::optional<Worker> worker;
  if (work) worker.emplace(work);
  while (true) {
    const bool is_working = worker && !worker->wait(options.beat);
    const std::exception_ptr error = worker && !is_working ? worker->error() : nullptr;
    if (is_working && options.progress) options.progress(worker->progress());
    std::array<int64_t, 3> sums{is_working ? 1 : 0, options.stop_requested && options.stop_requested() ? 1 : 0,
                                error ? 1 : 0};
    const Buffer buffer{sums.data(), static_cast<int64_t>(sums.size()), Dtype::int64};
    world.all_reduce(buffer, buffer, ReduceOp::sum, "data preparation");
    const auto [num_working, num_stopping, num_failed] = sums;
    if (num_failed > 0) throw_failure(world, error);
    if (num_stopping > 0) {
      throw Interrupted({"train", "data", "stopped on request while the data was being prepared", "",
                         "start the run again: what was finished is in the cache"});
    }
    if (num_working == 0) return;
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + " " + boot;
}

Dataset prepare_dataset(const Recipe::Data& data, const DataFolders& folders, Communicator& world,
                        const JointWork& options, const std::string& host, int64_t context) {
  // Ranks of a host with separate caches do not find what another rank has built.
  const std::string place = host + " " + (data.streaming ? folders.cache.string() : "");
  const std::vector<std::string> places = gather_texts(world, place, "hosts");
  const auto first = std::find(places.begin(), places.end(), place) - places.begin();
  const bool is_first = first == world.rank();
  std::optional<Dataset> dataset;
  const auto open = [&](DataObserver& observer) {
    const StreamRole role = is_first ? StreamRole::builds : StreamRole::reads;
    dataset.emplace(open_dataset(data, folders, observer, role, context));
  };
  work_jointly(world, is_first ? open : std::function<void(DataObserver&)>(), options);
  work_jointly(world, is_first ? std::function<void(DataObserver&)>() : open, options);
  return std::move(*dataset);
}

void prepare_samples(TokenStreams& streams, const TaskRows& rows, int64_t first, int64_t end, Communicator& world,
                     const JointWork& options) {
  if (rows.is_ready(end)) return;
  std::vector<SharedFact> facts;
  const auto prepare = [&](DataObserver& observer) {
    observer.begin("tokenizing", 0);
    for (const TaskRows::SeenShard& shard : rows.prepare(first, end, observer)) {
      facts.push_back({shard.name, shard.content.hex()});
    }
  };
  // The building ranks come first and keep their shards open, so that the others find them without waiting.
  const std::function<void(DataObserver&)> none;
  work_jointly(world, streams.builds() ? prepare : none, options);
  streams.add_records(broadcast_text(world, world.rank() == 0 ? streams.take_new_records() : "", 0, "shards"));
  work_jointly(world, streams.builds() ? none : prepare, options);
  refuse_different_data(find_disagreement(world, facts, "data"));
}

}  // namespace caravan
