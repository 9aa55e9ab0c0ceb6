#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "caravan/comm/messages/collective.h"

namespace caravan::messages {

struct SplitResult {
  int id = 0;           ///< of the new communicator, the same on all ranks of the part
  std::string overlap;  ///< in words, the same on every rank; "" if the parts are equal or disjoint
};

/// Communicator::split: all ranks show the members of their parts, and each checks them all. The number of the new
/// communicator is the least that none of its ranks has had.
class SplitJob final : public Job {
 public:
  SplitJob(const Seat& seat, std::span<const int> members, std::string_view name, int next_id, uint64_t sequence,
           std::shared_ptr<SplitResult> result);
  void run(Lane& lane) override;

 private:
  const Seat& seat_;
  int next_id_;
  std::shared_ptr<SplitResult> result_;
};

}  // namespace caravan::messages
