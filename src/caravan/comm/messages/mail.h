#pragma once

#include <cstddef>
#include <memory>

#include "caravan/comm/messages/exchange.h"
#include "caravan/comm/messages/seat.h"

namespace caravan::messages {

/// A send. Of a small message the job keeps a copy, so that the caller need not wait for the receiver.
class SendMail final : public Job {
 public:
  SendMail(const Seat& seat, std::shared_ptr<Operation> operation);
  void run(Lane& lane) override;
  bool is_copied() const noexcept { return copy_ != nullptr; }

 private:
  const Seat& seat_;
  const std::byte* data_;
  int64_t bytes_;
  std::unique_ptr<std::byte[]> copy_;
};

class RecvMail final : public Job {
 public:
  RecvMail(const Seat& seat, std::shared_ptr<Operation> operation) : Job(std::move(operation)), seat_(seat) {}
  void run(Lane& lane) override;

 private:
  const Seat& seat_;
};

}  // namespace caravan::messages
