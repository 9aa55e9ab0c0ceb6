#include "caravan/comm/backends/messages/split.h"

#include "caravan/comm/members.h"

namespace caravan::messages {

SplitTask::SplitTask(const Group& group, std::span<const int> members, std::string_view name, const TagIds& ids,
                     uint64_t sequence, std::shared_ptr<SplitResult> result)
    : MessageTask(std::make_shared<Operation>(split_operation(members, group.size, name))),
      group_(group),
      proposal_(ids.proposal(static_cast<size_t>(group.size))),
      result_(std::move(result)) {
  call_.verb = kSplitCall;
  call_.sequence = sequence;
}

void SplitTask::run(TaskThread& thread) {
  CallSheet own(group_.size);
  own.write(call_, operation_->send_counts, proposal_);
  const std::vector<CallSheet> sheets = exchange_sheets(thread, group_, std::move(own));
  compare_sheets(group_, call_, sheets);
  std::vector<std::span<const int64_t>> lists;
  for (const CallSheet& sheet : sheets) lists.push_back(sheet.send_counts());
  result_->overlap = find_overlap(lists);
  std::vector<std::span<const int64_t>> proposals;
  for (const int64_t member : without_padding(operation_->send_counts)) {
    proposals.push_back(sheets[static_cast<size_t>(member)].recv_counts());
  }
  result_->id = TagIds::choose(proposals);
}

}  // namespace caravan::messages
