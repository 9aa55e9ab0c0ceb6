#pragma once

#include <filesystem>
#include <string_view>

#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// Whether a file that begins with `head` has JSON objects, one a line. Prose or a program that begins with a brace
/// does not.
bool is_json_lines(std::string_view head);

/// Whether the name is that of JSON lines: .jsonl or .ndjson, also with .gz or .zst after it.
bool has_json_lines_name(const std::filesystem::path& path);

/// Throws DataError if the content of the file `path`, which is not empty, is that of an archive, a table (Parquet), an
/// image, UTF-16, or any other binary file. The message names the format and the command that converts it. `observer`
/// sees the bytes go by.
void check_is_not_binary(std::string_view content, const std::filesystem::path& path,
                         DataObserver& observer = DataObserver::none());

/// The same, and if it is not UTF-8.
void check_is_text(std::string_view content, const std::filesystem::path& path,
                   DataObserver& observer = DataObserver::none());

}  // namespace caravan
