#include "caravan/engine/transfer.h"

#include <algorithm>
#include <utility>

namespace caravan {

class TransferQueue::Transfer {
 public:
  explicit Transfer(std::vector<Stage> stages) : stages_(std::move(stages)) { start_next(); }

  bool has_stages_left() const noexcept { return next_ < stages_.size(); }
  bool is_complete() {
    if (has_stages_left() || !current_.done()) return false;
    if (current_.error() != nullptr) return false;  // wait() throws it
    current_ = Work();                              // and its buffers, whoever holds a ticket
    return true;
  }
  void poll() { current_.done(); }

  /// Waits for the stage in flight, and starts the next.
  void advance() {
    current_.wait();
    start_next();
  }

 private:
  void start_next() {
    if (!has_stages_left()) {
      current_ = Work();
      return;
    }
    const Stage stage = std::move(stages_[next_++]);  // it holds the buffers of its operation, which keeps them itself
    current_ = stage();
  }

  std::vector<Stage> stages_;
  size_t next_ = 0;
  Work current_;
};

TransferQueue::Ticket TransferQueue::add(std::vector<Stage> stages) {
  for (const Ticket& earlier : transfers_) {
    if (earlier->has_stages_left()) earlier->advance();
  }
  drop_complete();
  transfers_.push_back(std::make_shared<Transfer>(std::move(stages)));
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
