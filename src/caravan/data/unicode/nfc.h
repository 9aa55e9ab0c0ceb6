#pragma once

#include <string>
#include <string_view>

namespace caravan {

/// `text`, well-formed UTF-8, in Unicode's normalization form C. Returns `text` itself if it is ASCII, else a view of
/// `scratch`. Throws ResourceError if memory is exhausted.
std::string_view to_nfc(std::string_view text, std::string& scratch);

}  // namespace caravan
