#pragma once

#include <cstddef>
#include <memory>

#include "caravan/comm/backends/messages/group.h"
#include "caravan/comm/backends/messages/message_exchange.h"

namespace caravan::messages {

/// A send. The task keeps a copy of a small message, so that the caller need not wait for the receiver.
class SendTask final : public MessageTask {
 public:
  SendTask(const Group& group, std::shared_ptr<Operation> operation);
  void run(TaskThread& thread) override;
  bool is_copied() const noexcept { return copy_ != nullptr; }

 private:
  const Group& group_;
  const std::byte* data_;
  int64_t bytes_;
  std::unique_ptr<std::byte[]> copy_;
};

class RecvTask final : public MessageTask {
 public:
  RecvTask(const Group& group, std::shared_ptr<Operation> operation)
      : MessageTask(std::move(operation)), group_(group) {}
  void run(TaskThread& thread) override;

 private:
  const Group& group_;
};

}  // namespace caravan::messages
