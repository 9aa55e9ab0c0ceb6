#include "caravan/comm/messages/split.h"

#include <algorithm>
#include <vector>

#include "caravan/comm/members.h"

namespace caravan::messages {
SplitJob::SplitJob(const Seat& seat, std::span<const int> members, std::string_view name, int next_id,
                   uint64_t sequence, std::shared_ptr<SplitResult> result)
    : Job(std::make_shared<Operation>(split_operation(members, seat.size, name))),
      seat_(seat),
      next_id_(next_id),
      result_(std::move(result)) {
  call_.verb = kSplitCall;
  call_.sequence = sequence;
}

void SplitJob::run(Lane& lane) {
  CallSheet own(seat_.size);
  own.write(call_, operation_->send_counts, std::vector<int64_t>{next_id_});
  const std::vector<CallSheet> sheets = exchange_sheets(lane, seat_, std::move(own));
  compare_sheets(seat_, call_, sheets);
  std::vector<std::span<const int64_t>> lists;
  for (const CallSheet& sheet : sheets) lists.push_back(sheet.send_counts());
  result_->overlap = find_overlap(lists);
  int64_t id = 0;
  for (const int64_t member : without_padding(operation_->send_counts)) {
    id = std::max(id, sheets[static_cast<size_t>(member)].recv_counts()[0]);
  }
  result_->id = static_cast<int>(id);
}

}  // namespace caravan::messages
