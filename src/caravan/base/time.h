#pragma once

#include <string>

namespace caravan {

/// Seconds since 1970, by this host's clock.
double now_seconds();

/// "2026-03-01T09:30:05.250Z"
std::string utc_text(double seconds);
/// Seconds since 1970 of such a text. Throws DataError for another.
double parse_utc(const std::string& text);

}  // namespace caravan
