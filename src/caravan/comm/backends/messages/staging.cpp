#include "caravan/comm/backends/messages/staging.h"

#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace caravan::messages {
namespace {

using Memory = std::unique_ptr<std::byte[]>;

struct GivenUp {
  Memory memory;  // outlives the transfer
  std::unique_ptr<Transfer> transfer;
};

}  // namespace

struct Staging::State {
  std::shared_ptr<Transport> under;
  std::mutex mutex;
  std::vector<GivenUp> given_up;
  std::set<int> broken;  ///< world ranks

  void refuse_broken(int world_rank) {
    const std::lock_guard lock(mutex);
    if (broken.contains(world_rank)) {
      throw std::runtime_error("a large message to or from it was abandoned in flight, and nothing can follow it");
    }
  }
};

namespace {

class StagedTransfer final : public Transfer {
 public:
  /// `to`: where a staged message is copied on arrival, else null.
  StagedTransfer(std::shared_ptr<Staging::State> state, std::unique_ptr<Transfer> under, int world_rank, Memory memory,
                 std::byte* to, size_t bytes)
      : state_(std::move(state)),
        memory_(std::move(memory)),
        under_(std::move(under)),
        world_rank_(world_rank),
        to_(to),
        bytes_(bytes) {}

  ~StagedTransfer() override {
    if (ended_) return;
    const std::lock_guard lock(state_->mutex);
    if (memory_ == nullptr) {
      state_->broken.insert(world_rank_);
    } else {
      state_->given_up.push_back({std::move(memory_), std::move(under_)});
    }
  }

  bool wait() override {
    try {
      ended_ = under_->wait();
    } catch (...) {
      ended_ = true;  // and so has the connection
      throw;
    }
    if (ended_ && to_ != nullptr) std::memcpy(to_, memory_.get(), bytes_);
    return ended_;
  }
  void interrupt() noexcept override { under_->interrupt(); }

 private:
  std::shared_ptr<Staging::State> state_;
  Memory memory_;
  std::unique_ptr<Transfer> under_;
  int world_rank_;
  std::byte* to_;
  size_t bytes_;
  bool ended_ = false;
};

}  // namespace

Staging::Staging(std::shared_ptr<Transport> under) : state_(std::make_shared<State>()) {
  state_->under = std::move(under);
}

std::unique_ptr<Transfer> Staging::send(const std::byte* data, size_t bytes, int world_rank, int tag) {
  state_->refuse_broken(world_rank);
  Memory memory;
  if (bytes <= kStagedBytes) {
    memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(memory.get(), data, bytes);
    data = memory.get();
  }
  auto under = state_->under->send(data, bytes, world_rank, tag);
  return std::make_unique<StagedTransfer>(state_, std::move(under), world_rank, std::move(memory), nullptr, bytes);
}

std::unique_ptr<Transfer> Staging::recv(std::byte* data, size_t bytes, int world_rank, int tag) {
  state_->refuse_broken(world_rank);
  if (bytes > kStagedBytes) {
    auto under = state_->under->recv(data, bytes, world_rank, tag);
    return std::make_unique<StagedTransfer>(state_, std::move(under), world_rank, nullptr, nullptr, bytes);
  }
  Memory memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  auto under = state_->under->recv(memory.get(), bytes, world_rank, tag);
  return std::make_unique<StagedTransfer>(state_, std::move(under), world_rank, std::move(memory), data, bytes);
}

bool Staging::reports_lost_peers() const noexcept { return state_->under->reports_lost_peers(); }

void Staging::all_delivered() noexcept { state_->under->all_delivered(); }

}  // namespace caravan::messages
