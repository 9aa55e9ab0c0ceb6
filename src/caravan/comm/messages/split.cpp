#include "caravan/comm/messages/split.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan::messages {
namespace {

constexpr int64_t kNobody = -1;  // fills the lists of members up

std::span<const int64_t> without_padding(std::span<const int64_t> list) {
  return list.first(static_cast<size_t>(std::ranges::find(list, kNobody) - list.begin()));
}

bool equal_or_disjoint(std::span<const int64_t> a, std::span<const int64_t> b) {
  return std::ranges::equal(a, b) || std::ranges::find_first_of(a, b) == a.end();
}

std::string find_overlap(std::span<const CallSheet> sheets) {
  for (size_t a = 0; a < sheets.size(); ++a) {
    for (size_t b = a + 1; b < sheets.size(); ++b) {
      const std::span<const int64_t> of_a = without_padding(sheets[a].send_counts());
      const std::span<const int64_t> of_b = without_padding(sheets[b].send_counts());
      if (equal_or_disjoint(of_a, of_b)) continue;
      return fmt::format("rank {} gives the members [{}], rank {} gives [{}]", a, join(of_a), b, join(of_b));
    }
  }
  return "";
}

std::shared_ptr<Operation> make_operation(std::span<const int> members, int size, std::string_view name) {
  auto operation = std::make_shared<Operation>();
  std::memcpy(operation->what.data(), name.data(), std::min(name.size(), operation->what.size() - 1));
  operation->send_counts.assign(members.begin(), members.end());
  operation->send_counts.resize(static_cast<size_t>(size), kNobody);
  return operation;
}

}  // namespace

SplitJob::SplitJob(const Seat& seat, std::span<const int> members, std::string_view name, int next_id,
                   uint64_t sequence, std::shared_ptr<SplitResult> result)
    : Job(make_operation(members, seat.size, name)), seat_(seat), next_id_(next_id), result_(std::move(result)) {
  call_.verb = kSplitCall;
  call_.sequence = sequence;
}

void SplitJob::run(Lane& lane) {
  CallSheet own(seat_.size);
  own.write(call_, operation_->send_counts, std::vector<int64_t>{next_id_});
  const std::vector<CallSheet> sheets = exchange_sheets(lane, seat_, std::move(own));
  compare_sheets(seat_, call_, sheets);
  result_->overlap = find_overlap(sheets);
  int64_t id = 0;
  for (const int64_t member : without_padding(operation_->send_counts)) {
    id = std::max(id, sheets[static_cast<size_t>(member)].recv_counts()[0]);
  }
  result_->id = static_cast<int>(id);
}

}  // namespace caravan::messages
