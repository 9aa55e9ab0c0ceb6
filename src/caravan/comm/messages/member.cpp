#include "caravan/comm/messages/member.h"

#include <exception>
#include <numeric>

#include <fmt/format.h>

#include "caravan/comm/algorithms/selection.h"
#include "caravan/comm/messages/goodbye.h"
#include "caravan/comm/messages/message_communicator.h"
#include "caravan/comm/messages/staging.h"

namespace caravan::messages {
namespace {

constexpr std::chrono::milliseconds kLeave{2000};
constexpr std::chrono::milliseconds kText{500};  // between the claim of a failure and its text

}  // namespace

Member::Member(std::string_view backend, std::shared_ptr<Transport> transport, std::shared_ptr<Store> store, int rank,
               int size, const CommOptions& options)
    : backend_(backend),
      transport_(transport == nullptr ? nullptr : std::make_shared<Staging>(std::move(transport))),
      store_(std::move(store)),
      rank_(rank),
      size_(size),
      options_(options),
      exceptions_at_birth_(std::uncaught_exceptions()),
      is_clean_(options.check) {
  if (options_.algorithms == nullptr) options_.algorithms = std::make_shared<algorithms::SelectionTable>();
  if (transport_ != nullptr && transport_->reports_lost_peers()) {
    watch_ = std::make_unique<Watch>(*transport_, rank_, size_, bell_);
  }
}

Member::~Member() {
  if (!failed_ && transport_ != nullptr && std::uncaught_exceptions() <= exceptions_at_birth_) take_leave();
}

void Member::take_leave() noexcept {
  try {
    Seat seat;
    seat.transport = transport_;
    seat.rank = rank_;
    seat.size = size_;
    seat.world_ranks.resize(static_cast<size_t>(size_));
    std::iota(seat.world_ranks.begin(), seat.world_ranks.end(), 0);
    Lane lane(bell_);
    const uint64_t seen = bell_.count();
    const auto goodbye = std::make_shared<Goodbye>(std::move(seat), is_clean_);
    lane.push(goodbye);
    bell_.wait(seen, std::chrono::steady_clock::now() + kLeave);
    lane.stop();
    if (goodbye->all_are_clean()) transport_->end_well();
  } catch (const std::exception&) {  // no thread: the connections close without a word
  }
}

void Member::collect() noexcept {
  if (const auto lost = watch_ == nullptr ? std::nullopt : watch_->lost()) {
    close(publish_failure(kWorld, fmt::format("rank {} of the world is lost: {}", lost->world_rank, lost->fact)));
  }
  // Completing an operation may destroy what its owner kept alive, but no communicator: those outlive their operations.
  for (MessageCommunicator* communicator : communicators_) communicator->collect();
}

std::string Member::publish_failure(const std::string& scope, const std::string& text) noexcept {
  if (scope == kWorld) failed_ = true;
  try {
    if (store_ == nullptr || store_is_lost_) return text;
    const std::string key = "failure/" + scope;
    if (store_->add(key + "/claims", 1) == 1) {
      store_->set(key, text);
      return text;
    }
    return store_->get(key, kText);
  } catch (const std::exception&) {
    store_is_lost_ = true;
    return text;
  }
}

std::string Member::failure(const std::string& scope) noexcept {
  try {
    if (store_ == nullptr || store_is_lost_) return "";
    const std::string key = "failure/" + scope;
    return store_->has(key) ? store_->get(key, kText) : "";
  } catch (const std::exception&) {
    store_is_lost_ = true;
    return "";
  }
}

void Member::publish_leave(const std::string& scope, int rank, const std::string& counts) noexcept {
  try {
    if (store_ == nullptr || store_is_lost_) return;
    store_->set(fmt::format("left/{}/{}", scope, rank), counts);
    store_->set("left/" + scope, "");
  } catch (const std::exception&) {
    store_is_lost_ = true;
  }
}

bool Member::has_somebody_left(const std::string& scope) noexcept {
  try {
    return store_ != nullptr && !store_is_lost_ && store_->has("left/" + scope);
  } catch (const std::exception&) {
    store_is_lost_ = true;
    return false;
  }
}

std::string Member::leave(const std::string& scope, int rank) noexcept {
  try {
    const std::string key = fmt::format("left/{}/{}", scope, rank);
    return store_->has(key) ? store_->get(key, kText) : "";
  } catch (const std::exception&) {
    store_is_lost_ = true;
    return "";
  }
}

void Member::close(const std::string& text) noexcept {
  failed_ = true;
  for (MessageCommunicator* communicator : communicators_) communicator->fail_with_peer_error(text);
  watch_.reset();
  transport_.reset();
}

}  // namespace caravan::messages
