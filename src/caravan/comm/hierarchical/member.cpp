#include "caravan/comm/hierarchical/member.h"

#include <algorithm>
#include <exception>
#include <thread>

#include <fmt/format.h>

#include "caravan/comm/hierarchical/hierarchical_communicator.h"

namespace caravan::hierarchical {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{250};
constexpr milliseconds kAnswer{600};  // more than two looks
constexpr milliseconds kPause{5};
constexpr const char* kQuestions = "questions";

}  // namespace

Member::Member(std::string backend, std::shared_ptr<Store> store, int rank, int size, const CommOptions& options,
               std::shared_ptr<Communicator> inner, std::shared_ptr<Communicator> outer)
    : backend_(std::move(backend)),
      store_(std::move(store)),
      rank_(rank),
      options_(options),
      inner_(std::move(inner)),
      outer_(std::move(outer)),
      board_(backend_, nullptr, store_, rank, size, options),
      last_calls_(size) {
  const auto drive = [this] {
    if (outstanding() == 0) return Besides::nothing;
    return progress() ? Besides::moved : Besides::waits;
  };
  for (const auto& level : {inner_, outer_}) {
    if (level != nullptr) dynamic_cast<Level&>(*level).drive_also(drive);
  }
}

Member::~Member() {
  for (const auto& level : {inner_, outer_}) {
    if (level != nullptr) dynamic_cast<Level&>(*level).drive_also({});
  }
}

size_t Member::outstanding() const noexcept {
  size_t sum = 0;
  for (const HierarchicalCommunicator* communicator : communicators_) sum += communicator->outstanding();
  return sum;
}

bool Member::progress() noexcept {
  bool moved = false;
  for (HierarchicalCommunicator* communicator : communicators_) moved |= communicator->advance();
  return moved;
}

void Member::look() noexcept {
  const auto now = steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  if (store_ == nullptr) return;
  const std::string failure = board_.failure(messages::Member::kWorld);
  if (!failure.empty()) return close(failure);
  for (HierarchicalCommunicator* communicator : communicators_) communicator->look_elsewhere();
  try {
    const int64_t questions = store_->add(kQuestions, 0);
    if (questions == questions_) return;
    questions_ = questions;
    for (HierarchicalCommunicator* communicator : communicators_) {
      tell(communicator->scope(), communicator->calls_made().text());
    }
  } catch (const std::exception&) {  // the store is lost: nobody can be asked
  }
}

void Member::tell(const std::string& scope, const std::string& text) {
  store_->set(fmt::format("calls/{}/{}", scope, rank_), text);
}

std::vector<int> Member::ask(const std::string& scope, const std::string& own, std::vector<int> world_ranks,
                             const std::function<bool(const std::string& answer)>& is_far_enough) noexcept {
  try {
    tell(scope, own);
    questions_ = store_->add(kQuestions, 1);
    const auto deadline = steady_clock::now() + kAnswer;
    for (;;) {
      std::erase_if(world_ranks, [&](int rank) {
        const std::string key = fmt::format("calls/{}/{}", scope, rank);
        return store_->has(key) && is_far_enough(store_->get(key, kPause));
      });
      if (world_ranks.empty() || steady_clock::now() >= deadline) break;
      std::this_thread::sleep_for(kPause);
    }
  } catch (const std::exception&) {  // the store is lost: nobody can answer
  }
  return world_ranks;
}

void Member::close(const std::string& text) noexcept {
  for (HierarchicalCommunicator* communicator : communicators_) communicator->fail_with_peer_error(text);
  // Whoever waits in one level alone hears it there.
  for (const auto& level : {inner_, outer_}) {
    if (level != nullptr) dynamic_cast<Level&>(*level).end_world(text);
  }
}

}  // namespace caravan::hierarchical
