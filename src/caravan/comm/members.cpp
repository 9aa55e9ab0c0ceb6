#include "caravan/comm/members.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {

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
    if (seen[static_cast<size_t>(member)]) refuse(fmt::format("rank {} stands twice", member));
    seen[static_cast<size_t>(member)] = true;
    if (member == parent.rank()) place = static_cast<int>(i);
  }
  if (place < 0) refuse(fmt::format("rank {} itself is not", parent.rank()));
  return place;
}

}  // namespace caravan
