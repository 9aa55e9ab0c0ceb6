#include "caravan/comm/members.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

constexpr int64_t kPadding = -1;

bool equal_or_disjoint(std::span<const int64_t> a, std::span<const int64_t> b) {
  return std::ranges::equal(a, b) || std::ranges::find_first_of(a, b) == a.end();
}

}  // namespace

Operation split_operation(std::span<const int> members, int size, std::string_view name) {
  Operation operation;
  std::memcpy(operation.what.data(), name.data(), std::min(name.size(), operation.what.size() - 1));
  operation.send_counts.assign(members.begin(), members.end());
  operation.send_counts.resize(static_cast<size_t>(size), kPadding);
  return operation;
}

std::span<const int64_t> without_padding(std::span<const int64_t> list) {
  return list.first(static_cast<size_t>(std::ranges::find(list, kPadding) - list.begin()));
}

std::string find_overlap(std::span<const std::span<const int64_t>> lists) {
  for (size_t a = 0; a < lists.size(); ++a) {
    for (size_t b = a + 1; b < lists.size(); ++b) {
      const std::span<const int64_t> of_a = without_padding(lists[a]);
      const std::span<const int64_t> of_b = without_padding(lists[b]);
      if (equal_or_disjoint(of_a, of_b)) continue;
      return fmt::format("rank {} gives the members [{}], rank {} gives [{}]", a, join(of_a), b, join(of_b));
    }
  }
  return "";
}

void check_overlap(const std::string& overlap, const GroupInfo& parent, std::string_view name) {
  if (overlap.empty()) return;
  throw UsageError({.op = "split",
                    .subject = std::string(name),
                    .fact = "the parts overlap: " + overlap,
                    .where = parent.text(),
                    .action = "pass the same list on every rank of a part, and put every rank into one part"});
}

int check_members(std::span<const int> members, const Communicator& parent, std::string_view name) {
  const auto refuse = [&](std::string fact) {
    const std::vector<int64_t> numbers(members.begin(), members.end());
    throw UsageError({.op = "split",
                      .subject = std::string(name),
                      .fact = fmt::format("{} in the members [{}]", fact, join(numbers)),
                      .where = fmt::format("rank {} of {} of \"{}\"", parent.rank(), parent.size(), parent.name()),
                      .action = "give the ranks of this rank's own part, each once, itself included"});
  };
  std::vector<bool> seen(static_cast<size_t>(parent.size()));
  int place = -1;
  for (size_t i = 0; i < members.size(); ++i) {
    const int member = members[i];
    if (member < 0 || member >= parent.size()) refuse(fmt::format("there is no rank {}", member));
    if (seen[static_cast<size_t>(member)]) refuse(fmt::format("rank {} is listed twice", member));
    seen[static_cast<size_t>(member)] = true;
    if (member == parent.rank()) place = static_cast<int>(i);
  }
  if (place < 0) refuse(fmt::format("rank {} itself is not", parent.rank()));
  return place;
}

}  // namespace caravan
