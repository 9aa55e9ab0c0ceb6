#pragma once

#include <string_view>

namespace caravan {

/// Programs of Windows begin files in UTF-8 with it.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace caravan
