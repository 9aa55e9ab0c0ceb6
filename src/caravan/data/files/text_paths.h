#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace caravan {

/// Whether `path` has one of the wildcards of glob(7): *, ?, [..].
bool is_pattern(std::string_view path);

/// The text files that `path` means, sorted by name, without those whose names begin with a dot: a file is itself; a
/// pattern is the files and folders that match it; a folder is the files below it that end in one of .txt, .text, .md,
/// .json, .jsonl, .ndjson, also with .gz or .zst after it. Empty if nothing has this name or matches.
///
/// Of a folder with tables (.parquet, .arrow) these alone. Throws DataError for a folder without such files, for one
/// with a folder for each split, and for one with tables where this build reads none, naming what to do.
std::vector<std::filesystem::path> text_files(const std::filesystem::path& path);

}  // namespace caravan
