#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/backends/messages/message_collective.h"
#include "caravan/comm/backends/messages/tag_ids.h"

namespace caravan::messages {

struct SplitResult {
  int id = 0;           ///< of the new communicator, the same on all ranks of the part
  std::string overlap;  ///< a description, the same on every rank; "" if the parts are equal or disjoint
};

/// Communicator::split: all ranks exchange the members of their parts and the ids in use. Each rank checks the parts,
/// and chooses the same id for the new communicator as the other ranks of its part.
class SplitTask final : public MessageTask {
 public:
  SplitTask(const Group& group, std::span<const int> members, std::string_view name, const TagIds& ids,
            uint64_t sequence, std::shared_ptr<SplitResult> result);
  void run(TaskThread& thread) override;

 private:
  const Group& group_;
  std::vector<int64_t> proposal_;
  std::shared_ptr<SplitResult> result_;
};

}  // namespace caravan::messages
