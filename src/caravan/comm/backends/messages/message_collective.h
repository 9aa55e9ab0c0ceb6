#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/backends/messages/group.h"
#include "caravan/comm/backends/messages/message_exchange.h"
#include "caravan/comm/choice/selection.h"

namespace caravan::messages {

/// What every rank sends every other one before a call that is checked: its descriptor and its complete counts.
class CallSheet {
 public:
  explicit CallSheet(int size) : size_(static_cast<size_t>(size)), words_(kHead + 2 * size_) {}

  void write(const Descriptor& call, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts);
  std::byte* data() noexcept { return reinterpret_cast<std::byte*>(words_.data()); }
  int64_t bytes() const noexcept { return static_cast<int64_t>(words_.size() * sizeof(int64_t)); }
  Descriptor descriptor() const;
  std::span<const int64_t> send_counts() const { return std::span(words_).subspan(kHead, size_); }
  std::span<const int64_t> recv_counts() const { return std::span(words_).subspan(kHead + size_, size_); }

 private:
  static constexpr size_t kHead = sizeof(Descriptor) / sizeof(int64_t);
  size_t size_;
  std::vector<int64_t> words_;
};

/// The sheets of all ranks including `own`, in rank order.
std::vector<CallSheet> exchange_sheets(TaskThread& thread, const Group& group, CallSheet own);

/// How the ranks' calls differ; "" if they do not.
std::string difference_of(std::span<const CallSheet> sheets);

/// Throws the mismatch error, which names both sides, if the ranks' calls differ.
void compare_sheets(const Group& group, const Descriptor& own, std::span<const CallSheet> sheets);

/// A collective: runs the plan of the chosen algorithm.
class MessageCollective final : public MessageTask {
 public:
  MessageCollective(const Group& group, std::shared_ptr<Operation> operation, const algorithms::Choice& choice);
  void run(TaskThread& thread) override;

 private:
  void check(TaskThread& thread);

  const Group& group_;
  algorithms::Choice choice_;
};

}  // namespace caravan::messages
