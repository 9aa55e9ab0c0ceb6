#pragma once

#include <cstdint>
#include <filesystem>

namespace caravan {

/// The memory that the processes of this control group may use together, in bytes: the host's, or less where a limit of
/// a control group (version 1 or 2) on the path to this process is lower. 0 if it cannot be read. `root` stands for "/"
/// (for tests).
int64_t host_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace caravan
