#include "caravan/comm/backends/shared/shared_engine.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/system/cores.h"
#include "caravan/comm/backends/shared/peers/wait_errors.h"
#include "caravan/comm/backends/shared/shared_communicator.h"

namespace caravan::shared {
namespace {

constexpr std::chrono::milliseconds kGrace{500};  // for a departed rank to publish why
constexpr int kPollsPerCheck = 64;
// About a millisecond. Others get the core at once, and the wake-up of a sleeping core takes 50 us and more in a
// virtual machine, as long as many a wait for a slower rank.
constexpr int kYieldsOnOwnCore = 2000;

bool have_own_cores(int num_ranks, int num_cores) {
  return num_ranks <= (num_cores == 0 ? static_cast<int>(usable_cores().size()) : num_cores);
}

}  // namespace

SharedEngine::SharedEngine(std::shared_ptr<Segment> segment, int world_rank, std::string_view backend,
                           const CommOptions& options, std::unique_ptr<PeerWatch> watch, std::vector<int> world_ranks,
                           int num_cores)
    : segment_(std::move(segment)),
      arena_(std::make_shared<Arena>(segment_, world_rank)),
      world_rank_(world_rank),
      backend_(backend),
      options_(options),
      watch_(std::move(watch)),
      is_part_(!world_ranks.empty()),
      world_ranks_(std::move(world_ranks)),
      has_own_core_(have_own_cores(segment_->num_ranks(), num_cores)) {
  for (int rank = static_cast<int>(world_ranks_.size()); rank < segment_->num_ranks(); ++rank) {
    world_ranks_.push_back(rank);
  }
  Doorbell::set_up();
  arena_->set_is_used([this](const std::byte* memory, size_t bytes) {
    return std::ranges::any_of(communicators_, [&](const auto* each) { return each->uses(memory, bytes); });
  });
}

SharedEngine::~SharedEngine() {
  arena_->set_is_used(nullptr);  // blocks may outlive this
  segment_->rank(world_rank_).departed.store(1, std::memory_order_release);
}

void SharedEngine::remove(SharedCommunicator& communicator) { std::erase(communicators_, &communicator); }

void SharedEngine::abort(int world_rank, std::string_view text) noexcept {
  if (!segment_->world().failure.publish(world_rank, text)) return;
  for (int rank = 0; rank < segment_->num_ranks(); ++rank) segment_->rank(rank).doorbell.ring();
}

bool SharedEngine::progress() {
  bool moved = false;
  for (SharedCommunicator* communicator : communicators_) {
    if (communicator->outstanding() > 0) moved |= communicator->advance();
  }
  return moved;
}

void SharedEngine::poll() {
  if (progress()) {
    idle_polls_ = 0;
    return;
  }
  if (++idle_polls_ < kPollsPerCheck) return;
  idle_polls_ = 0;
  check_peers();
  for (SharedCommunicator* communicator : communicators_) {
    if (communicator->outstanding() == 0) continue;
    const TaskQueue& queue = communicator->first_queue();
    const auto failure = peer_failure(*communicator, queue.head().call());
    if (failure != nullptr && !progress()) communicator->die(failure);
  }
}

void SharedEngine::wait(SharedCommunicator& communicator, const TaskQueue& queue, const Operation& operation) {
  StallTimer stall(queue.num_moves());
  Backoff backoff(spins(), has_own_core_ ? kYieldsOnOwnCore : Backoff::kYields);
  while (!operation.complete) {
    const SideWork side_work = side_work_ ? side_work_() : SideWork::none;
    if (operation.complete) break;
    if (progress() || side_work == SideWork::moved) {
      backoff.reset();
      continue;
    }
    if (!backoff.should_sleep()) continue;
    const Clock::time_point now = Clock::now();
    stall.restart_if_moved(queue.num_moves(), now);
    check_peers();
    auto failure = peer_failure(communicator, queue.head().call());
    // What the failed rank published before it failed is visible now: complete what can be completed.
    if (failure != nullptr && progress()) continue;
    if (failure == nullptr) failure = left_or_late(communicator, queue, now - stall.since());
    if (failure != nullptr) return communicator.die(failure);
    const std::chrono::milliseconds nap = side_work == SideWork::none ? kProcessCheckInterval : Level::kNap;
    sleep([&] { return operation.complete; }, std::min<Clock::duration>(nap, stall.since() + options_.timeout - now));
  }
}

bool SharedEngine::has_failure(const SharedCommunicator& communicator) const noexcept {
  return segment_->world().failure.is_set() || communicator.state().region.control().failure.is_set() || !lost_.empty();
}

std::exception_ptr SharedEngine::peer_failure(const SharedCommunicator& communicator, const Descriptor& call) const {
  const FailureRecord& world = segment_->world().failure;
  if (world.is_set()) return peer_failure_error(communicator.state(), call, world.text(), FailureScope::world);
  const FailureRecord& own = communicator.state().region.control().failure;
  if (own.is_set()) return peer_failure_error(communicator.state(), call, own.text(), FailureScope::communicator);
  return lost_.empty() ? nullptr : peer_failure_error(communicator.state(), call, lost_, FailureScope::world);
}

std::exception_ptr SharedEngine::left_or_late(const SharedCommunicator& communicator, const TaskQueue& queue,
                                              Clock::duration waited) const {
  const RankState& state = communicator.state();
  std::vector<int> left;
  for (const int rank : queue.head().missing()) {
    if (state.region.left(rank).load(std::memory_order_acquire) != 0) left.push_back(rank);
  }
  if (!left.empty() && waited >= std::min<Clock::duration>(kGrace, options_.timeout)) {
    // A rank may have published just before it left.
    const std::vector<int> missing = queue.head().missing();
    std::erase_if(left, [&](int rank) { return std::ranges::find(missing, rank) == missing.end(); });
    if (!left.empty()) return left_error(state, queue.head().call(), left);
  }
  if (waited < options_.timeout) return nullptr;
  const std::vector<int> missing = queue.head().missing();
  return missing.empty() ? nullptr : late_error(state, queue.head().call(), missing, options_.timeout, watch_.get());
}

void SharedEngine::check_peers() {
  if (watch_ == nullptr) return;
  if (!process_check_.is_due(Clock::now())) return;
  for (const EndedPeer& peer : watch_->ended()) {
    if (segment_->rank(peer.world_rank).departed.load(std::memory_order_acquire) != 0) continue;
    const std::string text = fmt::format("rank {} of the world is lost: {}", name_of(peer.world_rank), peer.fact);
    abort(peer.world_rank, text);
    if (lost_.empty()) lost_ = text;
  }
}

void SharedEngine::pause(const std::function<bool()>& is_done, std::chrono::nanoseconds at_most) {
  idle_polls_ = kPollsPerCheck;
  poll();
  sleep(is_done, at_most);
}

void SharedEngine::sleep(const std::function<bool()>& is_done, Clock::duration at_most) {
  Doorbell& doorbell = segment_->rank(world_rank_).doorbell;
  const uint32_t announced = doorbell.announce();
  if (at_most <= Clock::duration::zero() || progress() || is_done()) return doorbell.cancel();
  doorbell.sleep(announced, at_most);
}

}  // namespace caravan::shared
