#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/hierarchical/task.h"
#include "caravan/comm/messages/collective.h"

namespace caravan::hierarchical {

/// What a rank tells of its call first: enough to know whether all are of one kind. The sums of `pairs` over all ranks
/// are 0 if what each sends to another is what that one expects.
struct CallLine {
  uint64_t digest = 0;
  uint64_t pairs = 0;
  uint64_t agrees = 1;  ///< of a host: its ranks do
  Descriptor call;
};
static_assert(sizeof(CallLine) % sizeof(uint64_t) == 0);

/// The comparison of the ranks' calls, as steps of a task that come before all others: lines are gathered in the host,
/// those of hosts between leaders, and told in the host. Where they differ, and for split, whose members all must know,
/// whole sheets go the same way; then every rank throws the error that names both sides.
class Check {
 public:
  using Note = std::function<void(int rank, const Descriptor& call)>;

  /// `task` outlives it. `note` hears what other ranks have called.
  Check(Task& task, Note note);

  void add_steps();
  /// The sheets of all ranks, in rank order: of a split, once its steps are done.
  const std::vector<messages::CallSheet>& sheets() const noexcept { return sheets_; }

 private:
  bool is_split() const noexcept { return own_.verb == kSplitCall; }
  CallLine own_line() const;
  CallLine line_of_host() const;
  void judge();
  std::vector<Task::Step> sheet_steps();
  void judge_sheets();

  Task& task_;
  Descriptor own_;
  Note note_;
  std::vector<CallLine> mates_;  // by place
  std::vector<CallLine> hosts_;
  messages::CallSheet own_sheet_;
  std::vector<std::byte> bytes_;  // of all sheets, host after host
  std::vector<messages::CallSheet> sheets_;
};

}  // namespace caravan::hierarchical
