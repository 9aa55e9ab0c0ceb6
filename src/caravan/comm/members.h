#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "caravan/comm/communicator.h"
#include "caravan/comm/group_info.h"

namespace caravan {

/// Checks one rank's list for Communicator::split: ranks of `parent`, without duplicates, with this rank among them.
/// Returns the index of this rank in it. Throws UsageError.
int check_members(std::span<const int> members, const Communicator& parent, std::string_view name);

/// A split as an operation of a communicator of `size` ranks: its send_counts are the members, padded to `size`.
Operation split_operation(std::span<const int> members, int size, std::string_view name);

/// The members in such a padded list.
std::span<const int64_t> without_padding(std::span<const int64_t> list);

/// Describes two of the ranks' lists (padded, in rank order) that are neither equal nor disjoint; "" if there are none.
std::string find_overlap(std::span<const std::span<const int64_t>> lists);

/// Throws the UsageError of a split into `name` if `overlap` is not empty.
void check_overlap(const std::string& overlap, const GroupInfo& parent, std::string_view name);

}  // namespace caravan
