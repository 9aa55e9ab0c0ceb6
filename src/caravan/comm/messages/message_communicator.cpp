#include "caravan/comm/messages/message_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/algorithms/problem.h"
#include "caravan/comm/call_errors.h"
#include "caravan/comm/members.h"
#include "caravan/comm/messages/collective.h"
#include "caravan/comm/messages/mail.h"
#include "caravan/comm/messages/split.h"

namespace caravan::messages {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{250};     // between two looks for a failure elsewhere, which cost messages
constexpr std::chrono::milliseconds kPatience{20};  // for what has long been sent, when the time is up

}  // namespace

std::shared_ptr<MessageCommunicator> MessageCommunicator::make_world(std::shared_ptr<Member> member) {
  Seat seat;
  seat.transport = member->transport();
  seat.rank = member->rank();
  seat.size = member->size();
  seat.name = "world";
  seat.world_ranks.resize(static_cast<size_t>(seat.size));
  std::iota(seat.world_ranks.begin(), seat.world_ranks.end(), 0);
  seat.check = member->options().check;
  seat.last_calls = std::make_shared<LastCalls>(seat.size);
  return std::make_shared<MessageCommunicator>(std::move(member), std::move(seat));
}

MessageCommunicator::MessageCommunicator(std::shared_ptr<Member> member, Seat seat, Lineage lineage)
    : Communicator(seat.rank, seat.size, seat.name, std::move(lineage)),
      member_(std::move(member)),
      seat_(std::move(seat)),
      exceptions_at_birth_(std::uncaught_exceptions()),
      algorithms_(member_->algorithms()),
      num_sends_(static_cast<size_t>(seat_.size)),
      num_recvs_(static_cast<size_t>(seat_.size)),
      sends_(static_cast<size_t>(seat_.size)),
      recvs_(static_cast<size_t>(seat_.size)) {
  member_->add(*this);
}

MessageCommunicator::~MessageCommunicator() {
  const auto has_work = [this] {
    return std::ranges::any_of(lanes(), [](Lane* lane) { return lane->head() != nullptr; });
  };
  if (std::uncaught_exceptions() > exceptions_at_birth_) {
    // Peers may be waiting for what this rank will never call.
    if (has_work()) {
      const std::string text =
          fmt::format("rank {} left: \"{}\" was destroyed there while an exception passed", rank(), name());
      fail(std::make_exception_ptr(CommError({.op = "communicator", .subject = name(), .fact = text})));
      member_->publish_failure(scope(), text);
    }
  } else {
    for (Lane* lane : lanes()) {
      wait(*lane, [&] { return error_ != nullptr || lane->head() == nullptr; });
    }
  }
  collect();
  leave();
  member_->remove(*this);
}

// What is told of a communicator when it is left: the number of its collectives, of the sends to each rank, of the
// recvs from each.
void MessageCommunicator::leave() noexcept {
  if (size() == 1 || error_ != nullptr) return;
  std::vector<uint64_t> counts{num_collectives_};
  counts.insert(counts.end(), num_sends_.begin(), num_sends_.end());
  counts.insert(counts.end(), num_recvs_.begin(), num_recvs_.end());
  member_->publish_leave(scope(), rank(),
                         {reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(uint64_t)});
}

int MessageCommunicator::rank_that_left(const Descriptor& call) {
  if (!member_->has_somebody_left(scope())) return -1;
  const Verb verb = static_cast<Verb>(call.verb);
  const bool is_mail = verb == Verb::send || verb == Verb::recv;
  const size_t n = static_cast<size_t>(size());
  std::vector<uint64_t> counts(1 + 2 * n);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || (is_mail && peer != call.root)) continue;
    const std::string text = member_->leave(scope(), peer);
    if (text.size() != counts.size() * sizeof(uint64_t)) continue;
    std::memcpy(counts.data(), text.data(), text.size());
    const size_t own = static_cast<size_t>(rank());
    const size_t which = verb == Verb::send ? 1 + n + own : verb == Verb::recv ? 1 + own : 0;
    if (counts[which] <= call.sequence) return peer;
  }
  return -1;
}

void MessageCommunicator::abort(std::string_view reason) noexcept {
  std::string text(reason);
  try {
    text = fmt::format("rank {} of the world gave up: {}", member_->rank(), reason);
  } catch (const std::exception&) {  // no memory for more
  }
  end_world(text);
}

void MessageCommunicator::end_world(std::string_view fact) noexcept {
  member_->close(member_->publish_failure(Member::kWorld, std::string(fact)));
}

std::vector<Lane*> MessageCommunicator::lanes() const {
  std::vector<Lane*> lanes;
  if (collectives_ != nullptr) lanes.push_back(collectives_.get());
  for (const auto* list : {&sends_, &recvs_}) {
    for (const auto& lane : *list) {
      if (lane != nullptr) lanes.push_back(lane.get());
    }
  }
  return lanes;
}

std::unique_ptr<Lane>& MessageCommunicator::lane_of(const Operation& operation) {
  if (operation.verb == Verb::send) return sends_[static_cast<size_t>(operation.peer)];
  if (operation.verb == Verb::recv) return recvs_[static_cast<size_t>(operation.peer)];
  return collectives_;
}

void MessageCommunicator::enqueue(std::unique_ptr<Lane>& lane, const std::shared_ptr<Job>& job) {
  member_->collect();
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (lane == nullptr) lane = std::make_unique<Lane>(member_->bell());
  lane->push(job);
  const Descriptor& call = job->call();
  uint64_t& count = call.verb == static_cast<uint8_t>(Verb::send)   ? num_sends_[static_cast<size_t>(call.root)]
                    : call.verb == static_cast<uint8_t>(Verb::recv) ? num_recvs_[static_cast<size_t>(call.root)]
                                                                    : num_collectives_;
  ++count;
}

void MessageCommunicator::start(const std::shared_ptr<Operation>& operation) {
  if (operation->verb == Verb::send) {
    const auto mail = std::make_shared<SendMail>(seat_, operation);
    enqueue(lane_of(*operation), mail);
    if (mail->is_copied()) operation->set_complete();
  } else if (operation->verb == Verb::recv) {
    enqueue(lane_of(*operation), std::make_shared<RecvMail>(seat_, operation));
  } else {
    enqueue(lane_of(*operation), std::make_shared<Collective>(seat_, operation, choose(*operation)));
  }
}

algorithms::Choice MessageCommunicator::choose(const Operation& operation) const {
  if (operation.verb == Verb::barrier) return {};
  return algorithms_->choose(backend(), operation.verb, size(), algorithms::whole_bytes(operation));
}

bool MessageCommunicator::select(std::shared_ptr<const algorithms::SelectionTable> table) {
  if (table == nullptr) table = member_->algorithms();
  algorithms_ = std::move(table);
  return true;
}

void MessageCommunicator::finish(Operation& operation) {
  const auto is_done = [&] { return operation.complete; };
  if (!is_done()) wait(*lane_of(operation), is_done);
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

void MessageCommunicator::progress() {
  member_->collect();
  const Clock::time_point now = Clock::now();
  if (error_ != nullptr || now - last_look_ < kLook) return;
  last_look_ = now;
  for (Lane* lane : lanes()) {
    if (lane->head() != nullptr && failed_elsewhere(*lane)) return;
  }
}

void MessageCommunicator::wait(Lane& lane, const std::function<bool()>& is_done) {
  const std::chrono::milliseconds timeout = member_->options().timeout;
  Clock::time_point since = Clock::now();
  Clock::time_point next_look = since + kLook;
  uint64_t moves = lane.num_moves();
  for (;;) {
    const uint64_t seen = member_->bell().count();
    member_->collect();
    const Besides besides = is_done() ? Besides::nothing : member_->besides();
    if (is_done()) return;
    if (besides == Besides::moved) continue;
    const Clock::time_point wake = std::min(since + timeout, next_look);
    member_->bell().wait(seen, besides == Besides::nothing ? wake : std::min(wake, Clock::now() + kNap));
    const Clock::time_point now = Clock::now();
    if (lane.num_moves() != moves) {
      moves = lane.num_moves();
      since = now;
    }
    if (now >= next_look) {
      next_look = now + kLook;
      if (failed_elsewhere(lane)) continue;
    }
    if (now - since >= timeout) lane.interrupt(kPatience);
  }
}

void MessageCommunicator::collect() noexcept {
  for (Lane* lane : lanes()) collect(*lane);
}

void MessageCommunicator::collect(Lane& lane) noexcept {
  for (const std::shared_ptr<Job>& job : lane.take_finished()) {
    if (job->error != nullptr) fail(error_ != nullptr ? error_ : error_of(*job));
    if (!job->operation()->complete) job->operation()->set_complete(job->error != nullptr ? error_ : nullptr);
  }
}

std::exception_ptr MessageCommunicator::error_of(const Job& job) noexcept {
  try {
    std::rethrow_exception(job.error);
  } catch (const PeerLost& lost) {
    return lost_error(job, lost);
  } catch (const PeersMissing& missing) {
    const auto error = late_error(job.call(), missing.peers);
    member_->publish_failure(scope(), failed_first_text(rank(), error));
    return error;
  } catch (...) {
    // All ranks of a collective see that their calls differ; of a message only two do, and one of them tells the
    // others.
    if (job.call().verb == static_cast<uint8_t>(Verb::recv)) {
      member_->publish_failure(scope(), failed_first_text(rank(), job.error));
    }
    return job.error;
  }
}

std::exception_ptr MessageCommunicator::late_error(const Descriptor& call, std::span<const int> ranks) const {
  std::function<LateRank(int)> look;  // calls that are not compared are not known
  if (seat_.check) look = [this](int rank) { return look_for(rank); };
  return caravan::late_error(seat_, call, ranks, member_->options().timeout, look);
}

void MessageCommunicator::pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) {
  const uint64_t seen = member_->bell().count();
  if (!is_done()) member_->bell().wait(seen, Clock::now() + at_most);
}

LateRank MessageCommunicator::look_for(int rank) const {
  return {seat_.last_calls->text(seat_.world_ranks[static_cast<size_t>(rank)])};
}

std::exception_ptr MessageCommunicator::lost_error(const Job& job, const PeerLost& lost) {
  // A rank that gives up says why before its connections close.
  std::string fact = member_->failure(scope());
  const int left = fact.empty() ? rank_that_left(job.call()) : -1;
  if (left >= 0) return left_error(seat_, job.call(), std::array{left});
  if (fact.empty()) {
    const int world_rank = seat_.world_ranks[static_cast<size_t>(lost.peer)];
    fact = member_->publish_failure(Member::kWorld,
                                    fmt::format("rank {} of the world is lost: {}", world_rank, lost.fact));
  }
  return peer_failure_error(seat_, job.call(), std::move(fact));
}

bool MessageCommunicator::failed_elsewhere(Lane& lane) {
  std::string fact = member_->failure(Member::kWorld);
  if (fact.empty()) fact = member_->failure(scope());
  const std::shared_ptr<Job> job = lane.head();
  const Descriptor call = job != nullptr ? job->call() : Descriptor{};
  const int left = fact.empty() && job != nullptr ? rank_that_left(call) : -1;
  if (left >= 0) fail(left_error(seat_, call, std::array{left}));
  if (!fact.empty()) fail(peer_failure_error(seat_, call, std::move(fact)));
  return error_ != nullptr;
}

std::string MessageCommunicator::scope() const { return fmt::format("{}.{}", seat_.id, seat_.world_ranks[0]); }

void MessageCommunicator::fail_with_peer_error(const std::string& fact) noexcept {
  const std::vector<Lane*> all = lanes();
  const auto at_work = std::ranges::find_if(all, [](Lane* lane) { return lane->head() != nullptr; });
  const Descriptor call = at_work != all.end() ? (*at_work)->head()->call() : Descriptor{};
  const std::string own = error_ == nullptr ? member_->failure(scope()) : "";  // is nearer to the cause
  fail(peer_failure_error(seat_, call, own.empty() ? fact : own));
  seat_.transport.reset();
}

void MessageCommunicator::fail(const std::exception_ptr& error) noexcept {
  if (error_ != nullptr) return;
  error_ = error;
  member_->note_failure();
  for (Lane* lane : lanes()) {
    for (const std::shared_ptr<Job>& job : lane->stop()) {
      if (!job->operation()->complete) job->operation()->set_complete(error_);
    }
    collect(*lane);
  }
}

std::shared_ptr<Communicator> MessageCommunicator::split(std::span<const int> members, std::string name) {
  Seat seat;
  seat.rank = check_members(members, *this, name);
  seat.transport = seat_.transport;
  seat.size = static_cast<int>(members.size());
  seat.name = std::move(name);
  seat.check = seat_.check;
  seat.last_calls = seat_.last_calls;
  for (const int member : members) seat.world_ranks.push_back(seat_.world_ranks[static_cast<size_t>(member)]);
  const uint64_t sequence = take_sequence();
  if (size() > 1) {
    const auto result = std::make_shared<SplitResult>();
    const auto job = std::make_shared<SplitJob>(seat_, members, seat.name, member_->next_id(), sequence, result);
    job->operation()->flight = &recorder()->log();
    job->operation()->flight_number = record(job->call());
    enqueue(collectives_, job);
    Communicator::wait(*job->operation());
    check_overlap(result->overlap, seat_, seat.name);
    seat.id = result->id;
    member_->use_id(seat.id);
  }
  return std::make_shared<MessageCommunicator>(member_, std::move(seat), child_lineage(sequence, members.front()));
}

}  // namespace caravan::messages
