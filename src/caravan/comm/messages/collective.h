#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/algorithms/selection.h"
#include "caravan/comm/messages/exchange.h"
#include "caravan/comm/messages/seat.h"

namespace caravan::messages {

/// What every rank shows every other one before a checked call: its descriptor and its complete counts.
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

/// The sheets of all ranks, this one's own included, in rank order.
std::vector<CallSheet> exchange_sheets(Lane& lane, const Seat& seat, CallSheet own);

/// Throws the mismatch error that names both sides if the ranks' calls do not fit.
void compare_sheets(const Seat& seat, const Descriptor& own, std::span<const CallSheet> sheets);

/// A collective: the schedule of the algorithm chosen, its messages on this lane.
class Collective final : public Job {
 public:
  Collective(const Seat& seat, std::shared_ptr<Operation> operation, const algorithms::Choice& choice);
  void run(Lane& lane) override;

 private:
  void check(Lane& lane);

  const Seat& seat_;
  algorithms::Choice choice_;
};

}  // namespace caravan::messages
