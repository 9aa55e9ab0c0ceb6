#include "caravan/engine/gradients/transfer.h"

#include <algorithm>
#include <utility>

namespace caravan {

void TransferStages::add(Stage stage) {
  if (finish_ == nullptr) {
    stages_.push_back(std::move(stage));
    return;
  }
  stages_.emplace_back([before = std::exchange(finish_, nullptr), stage = std::move(stage)] {
    before();
    return stage();
  });
}

void TransferStages::add_local(std::function<void()> work) {
  if (finish_ == nullptr) {
    finish_ = std::move(work);
    return;
  }
  finish_ = [before = std::move(finish_), work = std::move(work)] {
    before();
    work();
  };
}

class TransferQueue::Transfer {
 public:
  Transfer(std::vector<TransferStages::Stage> stages, std::function<void()> finish)
      : stages_(std::move(stages)), finish_(std::move(finish)) {
    start_next();
  }

  bool has_stages_left() const noexcept { return next_ < stages_.size(); }
  bool is_complete() {
    if (has_stages_left() || !current_.done()) return false;
    if (current_.error() != nullptr) return false;  // wait() throws it
    end();
    return true;
  }
  void poll() { current_.done(); }

  /// Waits for the stage in flight, and starts the next.
  void advance() {
    current_.wait();
    if (has_stages_left()) return start_next();
    end();
  }

 private:
  /// Releases the buffers too, even if a ticket is still held.
  void end() {
    current_ = Work();
    if (const auto finish = std::exchange(finish_, nullptr)) finish();
  }

  void start_next() {
    if (!has_stages_left()) return;
    const TransferStages::Stage stage =
        std::move(stages_[next_++]);  // it holds the buffers of its operation, which also keeps them alive
    current_ = stage();
  }

  std::vector<TransferStages::Stage> stages_;
  std::function<void()> finish_;
  size_t next_ = 0;
  Work current_;
};

TransferQueue::Ticket TransferQueue::add(TransferStages stages) {
  for (const Ticket& earlier : transfers_) {
    if (earlier->has_stages_left()) earlier->advance();
  }
  drop_complete();
  transfers_.push_back(std::make_shared<Transfer>(std::move(stages.stages_), std::move(stages.finish_)));
  return transfers_.back();
}

void TransferQueue::wait(const Ticket& ticket) {
  if (ticket == nullptr) return;
  while (ticket->has_stages_left()) ticket->advance();
  ticket->advance();
  drop_complete();
}

void TransferQueue::wait_all() {
  while (!transfers_.empty()) wait(Ticket(transfers_.front()));
}

void TransferQueue::poll() {
  for (const Ticket& transfer : transfers_) transfer->poll();
}

void TransferQueue::drop_complete() {
  std::erase_if(transfers_, [](const Ticket& transfer) { return transfer->is_complete(); });
}

}  // namespace caravan
