#pragma once

#include <cstdint>
#include <filesystem>

namespace caravan {

/// The smallest memory limit of the control groups of this process (version 2, then version 1), -1 if there is none.
/// `root` is the root of the file system; tests give their own.
int64_t control_group_memory_limit(const std::filesystem::path& root = "/");

/// The memory that this process can use: the machine's, or the limit of its control groups where that is less.
int64_t usable_memory_bytes();

}  // namespace caravan
