#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "caravan/data/data_observer.h"

namespace caravan {

/// Whether `content` begins as a gzip or a zstd file does.
bool is_compressed(std::string_view content);

/// Gives `use` what the gzip or zstd file `path`, whose content is `content`, decompresses to, in pieces of at most
/// 1 MiB. A file may be several compressed files one after the other. Uses about 1 MiB and what the format's window
/// needs (zstd: at most 128 MiB). `observer` sees the compressed bytes go by. Throws DataError naming `path` for a file
/// that is truncated or damaged.
void decompress(std::string_view content, const std::filesystem::path& path,
                const std::function<void(std::string_view piece)>& use, DataObserver& observer = DataObserver::none());

/// What the first 16 KiB of such a file decompress to.
std::string decompress_beginning(std::string_view content, const std::filesystem::path& path);

}  // namespace caravan
