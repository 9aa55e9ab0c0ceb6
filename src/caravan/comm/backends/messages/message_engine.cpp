#include "caravan/comm/backends/messages/message_engine.h"

#include <exception>

#include <fmt/format.h>

#include "caravan/comm/backends/messages/failure/shutdown.h"
#include "caravan/comm/backends/messages/message_communicator.h"
#include "caravan/comm/backends/messages/staging.h"
#include "caravan/comm/choice/selection.h"

namespace caravan::messages {
namespace {

constexpr std::chrono::milliseconds kShutdownTimeout{2000};

}  // namespace

MessageEngine::MessageEngine(std::string_view backend, std::shared_ptr<Transport> transport,
                             std::shared_ptr<Store> store, int rank, int size, const CommOptions& options)
    : backend_(backend),
      transport_(transport == nullptr ? nullptr : std::make_shared<Staging>(std::move(transport))),
      notices_(std::move(store)),
      rank_(rank),
      size_(size),
      options_(options),
      is_clean_(options.check) {
  if (options_.algorithms == nullptr) options_.algorithms = std::make_shared<algorithms::SelectionTable>();
  if (transport_ != nullptr && transport_->reports_lost_peers()) {
    watch_ = std::make_unique<ConnectionWatch>(*transport_, rank_, size_, completions_);
  }
}

MessageEngine::~MessageEngine() {
  if (!has_failed_ && transport_ != nullptr && !is_unwinding_) shut_down();
}

void MessageEngine::shut_down() noexcept {
  try {
    Group world(GroupInfo::of_world(rank_, size_));
    world.transport = transport_;
    TaskThread thread(completions_);
    const uint64_t seen = completions_.count();
    const auto shutdown = std::make_shared<Shutdown>(std::move(world), is_clean_);
    thread.push(shutdown);
    completions_.wait(seen, std::chrono::steady_clock::now() + kShutdownTimeout);
    thread.stop();
    if (shutdown->all_are_clean()) transport_->all_delivered();
  } catch (const std::exception&) {  // no thread: the connections close without notice
  }
}

void MessageEngine::collect() noexcept {
  if (const auto lost = watch_ == nullptr ? std::nullopt : watch_->lost()) {
    close(publish_world_failure(fmt::format("rank {} of the world is lost: {}", lost->world_rank, lost->fact)));
  }
  // Completing an operation may destroy what it keeps alive, but no communicator, since those outlive their operations.
  for (MessageCommunicator* communicator : communicators_) communicator->collect();
}

std::string MessageEngine::publish_world_failure(const std::string& text) noexcept {
  has_failed_ = true;
  return notices_.publish_failure(Notices::kWorld, text);
}

void MessageEngine::close(const std::string& text) noexcept {
  has_failed_ = true;
  for (MessageCommunicator* communicator : communicators_) communicator->fail_with_peer_error(text);
  watch_.reset();
  transport_.reset();
}

}  // namespace caravan::messages
