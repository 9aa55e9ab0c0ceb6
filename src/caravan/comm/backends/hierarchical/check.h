#pragma once

#include <functional>
#include <vector>

#include "caravan/comm/backends/hierarchical/hierarchical_task.h"
#include "caravan/comm/backends/messages/message_collective.h"

namespace caravan::hierarchical {

/// What a rank first sends about its call: enough to see whether all calls match. The sum of `pairs` over all ranks is
/// 0 if every rank expects from each other rank what that rank sends.
struct CallLine {
  uint64_t digest = 0;
  uint64_t pairs = 0;
  uint64_t agrees = 1;  ///< for a host: 0 if the calls of its ranks differ
  Descriptor call;
};
static_assert(sizeof(CallLine) % sizeof(uint64_t) == 0);

/// The comparison of the ranks' calls: the first steps of a task. Lines are gathered on each host, one line per host
/// between the leaders, and the result is broadcast on each host. If they differ, and for split, whose members every
/// rank needs, whole sheets are exchanged in the same way; then every rank throws the error, which names both sides.
class Check {
 public:
  using Note = std::function<void(int rank, const Descriptor& call)>;

  /// `task` outlives it. `note` is called with the calls of the other ranks.
  Check(HierarchicalTask& task, Note note);

  void add_steps();
  /// The sheets of all ranks, in rank order: for a split, once the steps are done.
  const std::vector<messages::CallSheet>& sheets() const noexcept { return sheets_; }

 private:
  bool is_split() const noexcept { return own_.verb == kSplitCall; }
  CallLine own_line() const;
  CallLine line_of_host() const;
  void judge();
  std::vector<HierarchicalTask::Step> sheet_steps();
  void judge_sheets();

  HierarchicalTask& task_;
  Descriptor own_;
  Note note_;
  std::vector<CallLine> local_lines_;  // by local rank
  std::vector<CallLine> host_lines_;
  messages::CallSheet own_sheet_;
  std::vector<std::byte> bytes_;  // of all sheets, ordered by host
  std::vector<messages::CallSheet> sheets_;
};

}  // namespace caravan::hierarchical
