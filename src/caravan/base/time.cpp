#include "caravan/base/time.h"

#include <chrono>
#include <cmath>
#include <ctime>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_text(double seconds) {
  const auto ms = static_cast<int64_t>(std::llround(seconds * 1e3));
  const std::time_t whole = ms / 1000;
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, ms % 1000);
}

double parse_utc(const std::string& text) {
  std::tm parts{};
  int ms = 0;
  int length = 0;
  const int found = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &parts.tm_year, &parts.tm_mon,
                                &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &ms, &length);
  if (found != 7 || static_cast<size_t>(length) != text.size()) {
    throw DataError({"time", text, "is not a time such as 2026-03-01T09:30:05.250Z", "", ""});
  }
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return static_cast<double>(::timegm(&parts)) + ms / 1e3;
}

}  // namespace caravan
