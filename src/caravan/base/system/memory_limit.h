#pragma once

#include <cstdint>
#include <filesystem>

namespace caravan {

/// The smallest memory limit of the control groups of this process and their parents (version 1 or 2), -1 if there is
/// none. A group that is not mounted, as in a container, counts as the root of the mount. `root` is the root of the
/// file system; tests give their own.
int64_t control_group_memory_limit(const std::filesystem::path& root = "/");

/// The memory that the processes of this control group can use together: the machine's, or the limit of the groups if
/// that is less. 0 if the `root` of a test has neither.
int64_t usable_memory_bytes(const std::filesystem::path& root = "/");

/// The limit of the address space of this process (ulimit -v), -1 if there is none.
int64_t address_space_limit() noexcept;

}  // namespace caravan
