#include "caravan/comm/backends/hierarchical/hierarchical_engine.h"

#include <algorithm>
#include <thread>

#include "caravan/comm/backends/hierarchical/hierarchical_communicator.h"

namespace caravan::hierarchical {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAnswerTimeout{600};  // more than two checks of the store
constexpr milliseconds kAnswerPoll{5};

}  // namespace

HierarchicalEngine::HierarchicalEngine(std::string backend, const std::shared_ptr<Store>& store, int rank, int size,
                                       const CommOptions& options, std::shared_ptr<Communicator> local,
                                       std::shared_ptr<Communicator> global)
    : backend_(std::move(backend)),
      rank_(rank),
      options_(options),
      local_(std::move(local)),
      global_(std::move(global)),
      notices_(store),
      last_calls_(size) {
  const auto drive = [this] {
    if (outstanding() == 0) return SideWork::none;
    return progress() ? SideWork::moved : SideWork::blocked;
  };
  for (const auto& level : {local_, global_}) {
    if (level != nullptr) dynamic_cast<Level&>(*level).set_side_work(drive);
  }
}

HierarchicalEngine::~HierarchicalEngine() {
  for (const auto& level : {local_, global_}) {
    if (level != nullptr) dynamic_cast<Level&>(*level).set_side_work({});
  }
}

size_t HierarchicalEngine::outstanding() const noexcept {
  size_t sum = 0;
  for (const HierarchicalCommunicator* communicator : communicators_) sum += communicator->outstanding();
  return sum;
}

bool HierarchicalEngine::progress() noexcept {
  bool moved = false;
  for (HierarchicalCommunicator* communicator : communicators_) moved |= communicator->advance();
  return moved;
}

void HierarchicalEngine::check_store() noexcept {
  if (!store_check_.is_due(steady_clock::now())) return;
  const std::string failure = notices_.failure(messages::Notices::kWorld);
  if (!failure.empty()) return close(failure);
  for (HierarchicalCommunicator* communicator : communicators_) communicator->check_notices();
  const int64_t questions = notices_.num_questions();
  if (questions == num_questions_) return;
  num_questions_ = questions;
  for (const HierarchicalCommunicator* communicator : communicators_) {
    notices_.publish_progress(communicator->scope(), rank_, communicator->counts());
  }
}

std::vector<int> HierarchicalEngine::find_late(
    const std::string& scope, const CallCounts& counts, std::vector<int> world_ranks,
    const std::function<bool(const std::string& answer)>& is_far_enough) noexcept {
  notices_.publish_progress(scope, rank_, counts);
  num_questions_ = notices_.ask_who_is_late();
  const auto deadline = steady_clock::now() + kAnswerTimeout;
  for (;;) {
    std::erase_if(world_ranks, [&](int rank) {
      const auto answer = notices_.progress(scope, rank);
      return answer.has_value() && is_far_enough(*answer);
    });
    if (world_ranks.empty() || steady_clock::now() >= deadline) return world_ranks;
    std::this_thread::sleep_for(kAnswerPoll);
  }
}

void HierarchicalEngine::close(const std::string& text) noexcept {
  has_failed_ = true;
  for (HierarchicalCommunicator* communicator : communicators_) communicator->fail_with_peer_error(text);
  // Ranks that wait in one level only learn of it there.
  for (const auto& level : {local_, global_}) {
    if (level != nullptr) dynamic_cast<Level&>(*level).end_world(text);
  }
}

}  // namespace caravan::hierarchical
