#include "caravan/comm/backends/backend_communicator.h"

#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

GroupInfo GroupInfo::of_world(int rank, int size) {
  GroupInfo world{rank, size, "world", std::vector<int>(static_cast<size_t>(size))};
  std::iota(world.world_ranks.begin(), world.world_ranks.end(), 0);
  return world;
}

GroupInfo GroupInfo::part(std::span<const int> members, int rank, std::string name) const {
  GroupInfo part{rank, static_cast<int>(members.size()), std::move(name), {}};
  for (const int member : members) part.world_ranks.push_back(world_ranks[static_cast<size_t>(member)]);
  return part;
}

std::string GroupInfo::text() const { return fmt::format("rank {} of {} of \"{}\"", rank, size, name); }

BackendCommunicator::BackendCommunicator(const GroupInfo& group, Lineage lineage)
    : Communicator(group.rank, group.size, group.name, std::move(lineage)),
      world_rank_(group.world_ranks[static_cast<size_t>(group.rank)]) {}

bool BackendCommunicator::keep_first_error(const std::exception_ptr& error) noexcept {
  if (first_error_ != nullptr) return false;
  first_error_ = error;
  return true;
}

void BackendCommunicator::shut_down() noexcept {
  if (!is_unwinding_) return complete_outstanding();
  if (num_outstanding() == 0) return;
  const std::string reason = fmt::format(
      "rank {} destroyed \"{}\" while an exception unwound its stack, with {} "
      "operations outstanding",
      rank(), name(), num_outstanding());
  abandon(std::make_exception_ptr(CommError({.op = "communicator", .subject = name(), .fact = reason})), reason);
}

void BackendCommunicator::abort(std::string_view reason) noexcept {
  std::string text;
  try {
    text = fmt::format("rank {} of the world aborted: {}", world_rank_, reason);
  } catch (const std::exception&) {  // no memory for a longer text
  }
  end_world(text.empty() ? reason : text);
}

}  // namespace caravan
