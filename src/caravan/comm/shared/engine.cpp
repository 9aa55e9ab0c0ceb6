#include "caravan/comm/shared/engine.h"

#include <algorithm>
#include <sched.h>
#include <thread>

#include <fmt/format.h>

#include "caravan/comm/shared/relax.h"
#include "caravan/comm/shared/shared_communicator.h"
#include "caravan/comm/shared/wait_errors.h"

namespace caravan::shared {
namespace {

constexpr std::chrono::milliseconds kLook{50};    // between two looks at the peers' processes
constexpr std::chrono::milliseconds kGrace{500};  // for the reason of a rank that has left
constexpr int kYields = 32;
constexpr int kPollsPerLook = 64;

// Spinning helps only while the awaited rank is running on another core.
int spins_before_yield(int num_ranks) {
  return static_cast<unsigned>(num_ranks) <= std::thread::hardware_concurrency() ? 1000 : 10;
}

}  // namespace

Engine::Engine(std::shared_ptr<Segment> segment, int world_rank, std::string_view backend, const CommOptions& options,
               std::unique_ptr<PeerWatch> watch, std::vector<int> world_ranks)
    : segment_(std::move(segment)),
      arena_(std::make_shared<Arena>(segment_, world_rank)),
      world_rank_(world_rank),
      backend_(backend),
      options_(options),
      watch_(std::move(watch)),
      is_part_(!world_ranks.empty()),
      world_ranks_(std::move(world_ranks)),
      spins_(spins_before_yield(segment_->num_ranks())) {
  for (int rank = static_cast<int>(world_ranks_.size()); rank < segment_->num_ranks(); ++rank) {
    world_ranks_.push_back(rank);
  }
}

Engine::~Engine() { segment_->rank(world_rank_).departed.store(1, std::memory_order_release); }

void Engine::remove(SharedCommunicator& communicator) { std::erase(communicators_, &communicator); }

void Engine::abort(int world_rank, std::string_view text) noexcept {
  if (!segment_->world().failure.publish(world_rank, text)) return;
  for (int rank = 0; rank < segment_->num_ranks(); ++rank) segment_->rank(rank).doorbell.ring();
}

bool Engine::progress() {
  bool moved = false;
  for (SharedCommunicator* communicator : communicators_) {
    if (communicator->outstanding() > 0) moved |= communicator->advance();
  }
  return moved;
}

void Engine::poll() {
  if (progress()) {
    idle_polls_ = 0;
    return;
  }
  if (++idle_polls_ < kPollsPerLook) return;
  idle_polls_ = 0;
  look_for_ended_peers();
  for (SharedCommunicator* communicator : communicators_) {
    if (communicator->outstanding() == 0) continue;
    const TaskQueue& queue = communicator->first_queue();
    const auto failure = peer_failure(*communicator, queue.head().call());
    if (failure != nullptr && !progress()) communicator->die(failure);
  }
}

void Engine::wait(SharedCommunicator& communicator, const TaskQueue& queue, const Operation& operation) {
  Clock::time_point since = Clock::now();
  uint64_t num_moves = queue.num_moves();
  int idle = 0;
  while (!operation.complete) {
    const Besides besides = also_ ? also_() : Besides::nothing;
    if (operation.complete) break;
    if (progress() || besides == Besides::moved) {
      idle = 0;
      continue;
    }
    if (++idle < spins_) {
      relax();
      continue;
    }
    if (idle < spins_ + kYields) {
      sched_yield();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (queue.num_moves() != num_moves) {
      num_moves = queue.num_moves();
      since = now;
    }
    look_for_ended_peers();
    auto failure = peer_failure(communicator, queue.head().call());
    // What the failed rank had published before can be seen by now: what can still be completed is.
    if (failure != nullptr && progress()) continue;
    if (failure == nullptr) failure = left_or_late(communicator, queue, now - since);
    if (failure != nullptr) return communicator.die(failure);
    const std::chrono::milliseconds nap = besides == Besides::nothing ? kLook : Level::kNap;
    sleep([&] { return operation.complete; }, std::min<Clock::duration>(nap, since + options_.timeout - now));
  }
}

bool Engine::somebody_failed(const SharedCommunicator& communicator) const noexcept {
  return segment_->world().failure.is_set() || communicator.seat().region.control().failure.is_set() || !lost_.empty();
}

std::exception_ptr Engine::peer_failure(const SharedCommunicator& communicator, const Descriptor& call) const {
  const FailureRecord& world = segment_->world().failure;
  if (world.is_set()) return peer_failure_error(communicator.seat(), call, world.text());
  const FailureRecord& own = communicator.seat().region.control().failure;
  if (own.is_set()) return peer_failure_error(communicator.seat(), call, own.text());
  return lost_.empty() ? nullptr : peer_failure_error(communicator.seat(), call, lost_);
}

std::exception_ptr Engine::left_or_late(const SharedCommunicator& communicator, const TaskQueue& queue,
                                        Clock::duration waited) const {
  const Seat& seat = communicator.seat();
  std::vector<int> left;
  for (const int rank : queue.head().missing()) {
    if (seat.region.left(rank).load(std::memory_order_acquire) != 0) left.push_back(rank);
  }
  if (!left.empty() && waited >= std::min<Clock::duration>(kGrace, options_.timeout)) {
    // It may have published just before it left.
    const std::vector<int> missing = queue.head().missing();
    std::erase_if(left, [&](int rank) { return std::ranges::find(missing, rank) == missing.end(); });
    if (!left.empty()) return left_error(seat, queue.head().call(), left);
  }
  if (waited < options_.timeout) return nullptr;
  const std::vector<int> missing = queue.head().missing();
  return missing.empty() ? nullptr : late_error(seat, queue.head().call(), missing, options_.timeout, watch_.get());
}

void Engine::look_for_ended_peers() {
  if (watch_ == nullptr) return;
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  for (const EndedPeer& peer : watch_->ended()) {
    if (segment_->rank(peer.world_rank).departed.load(std::memory_order_acquire) != 0) continue;
    const std::string text = fmt::format("rank {} of the world is lost: {}", name_of(peer.world_rank), peer.fact);
    abort(peer.world_rank, text);
    if (lost_.empty()) lost_ = text;
  }
}

void Engine::pause(const std::function<bool()>& is_done, std::chrono::nanoseconds at_most) {
  idle_polls_ = kPollsPerLook;
  poll();
  sleep(is_done, at_most);
}

void Engine::sleep(const std::function<bool()>& is_done, Clock::duration at_most) {
  Doorbell& doorbell = segment_->rank(world_rank_).doorbell;
  const uint32_t announced = doorbell.announce();
  if (at_most <= Clock::duration::zero() || progress() || is_done()) return doorbell.cancel();
  doorbell.sleep(announced, at_most);
}

}  // namespace caravan::shared
