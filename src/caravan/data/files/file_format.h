#pragma once

#include <filesystem>
#include <string_view>

#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// Whether a file that begins with `head` has JSON objects, one per line. False for prose or a program that begins with
/// a brace.
bool is_json_lines(std::string_view head);

/// Whether the name is a JSON lines name: .jsonl or .ndjson, optionally followed by .gz or .zst.
bool has_json_lines_name(const std::filesystem::path& path);

/// Throws DataError if the content of the file `path`, which is not empty, is that of an archive, a table (Parquet), an
/// image, UTF-16, or any other binary file. The message names the format and the command that converts it. `observer`
/// is told the bytes done.
void check_is_not_binary(std::string_view content, const std::filesystem::path& path,
                         DataObserver& observer = DataObserver::none());

/// The same; also throws DataError if the content is not UTF-8.
void check_is_text(std::string_view content, const std::filesystem::path& path,
                   DataObserver& observer = DataObserver::none());

}  // namespace caravan
