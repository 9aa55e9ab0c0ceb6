#pragma once

#include <filesystem>

namespace caravan::app {

/// Throws UsageError if libtorch is neither in `folder`, the run path of caravan-rank, nor on the dynamic linker's
/// other paths (LD_LIBRARY_PATH). Otherwise the linker would end every rank with exit code 127 and no hint of what to
/// do. Throws ResourceError if the limit of the address space has no room for it.
void require_libtorch(const std::filesystem::path& folder);

}  // namespace caravan::app
