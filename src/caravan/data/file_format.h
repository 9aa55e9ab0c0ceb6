#pragma once

#include <filesystem>
#include <string_view>

#include "caravan/data/data_observer.h"

namespace caravan {

/// Whether a file that begins with `head` has JSON objects, one a line. Prose or a program that begins with a brace
/// does not.
bool is_json_lines(std::string_view head);

/// Throws DataError if the content of the file `path`, which is not empty, is not plain UTF-8 text: an archive, a table
/// (Parquet), an image, UTF-16, or any other binary file. The message names the format and the command that converts
/// it. `observer` sees the bytes go by.
void check_is_text(std::string_view content, const std::filesystem::path& path,
                   DataObserver& observer = DataObserver::none());

}  // namespace caravan
