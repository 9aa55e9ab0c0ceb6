#pragma once

#include <string>
#include <string_view>

namespace caravan {

/// Unicode's normalisation form C of `text`, well-formed UTF-8: composed characters where there are any. Returns `text`
/// itself if it is ASCII, else a view of `scratch`. Throws ResourceError if memory is short.
std::string_view to_nfc(std::string_view text, std::string& scratch);

}  // namespace caravan
