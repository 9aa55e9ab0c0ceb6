#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace caravan {

/// Whether `path` has one of the wildcards of glob(7): *, ?, [..].
bool is_pattern(std::string_view path);

/// The text files given by `path`, sorted by name, without names that begin with a dot: the file itself; for a pattern
/// the files and folders that match it; for a folder the files below it that end in one of .txt, .text, .md, .json,
/// .jsonl, .ndjson, optionally followed by .gz or .zst. Empty if nothing has this name or matches.
///
/// A folder with tables (.parquet, .arrow) gives only the tables. Throws DataError naming what to do for a folder
/// without such files, for one with a folder for each split, and for one with tables if this build cannot read tables.
std::vector<std::filesystem::path> text_files(const std::filesystem::path& path);

}  // namespace caravan
