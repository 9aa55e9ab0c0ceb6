#pragma once

#include <exception>
#include <filesystem>

#include "caravan/base/content_hash.h"
#include "caravan/memory/disk/block.h"
#include "caravan/memory/disk/disk_io.h"

namespace caravan::disk {

/// A transfer of the file `path` that ended with `error`, an errno or kEndOfFile: ResourceError or DataError.
std::exception_ptr failed_transfer(const std::filesystem::path& path, const Transfer& transfer, int error);

/// A page that was read with another hash than it was written with: DataError.
std::exception_ptr wrong_page(const std::filesystem::path& path, const Page& page, const ContentHash& found);

}  // namespace caravan::disk
