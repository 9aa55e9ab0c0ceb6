#pragma once

#include <string>
#include <string_view>

namespace caravan {

/// Writes a pattern in the dialect of tokenizer.json files (Oniguruma, Ruby syntax) as one for PCRE2 in UTF mode with
/// PCRE2_MULTILINE that matches the same texts.
///   \s        the 25 characters of White_Space, spelled out: PCRE2's own \s lacks U+0085, and its older versions do
///   not
///             know the name of the property
///   \d, \p{L} with the code points of unicode_additions(); general categories only
///   (?i:..)   ASCII only, and no "ss", "st", "ff", "fi", "fl", which Oniguruma also matches as one character
///   X{2,3}+   is (?:X{2,3})+ there, X{2}? is (?:X{2})?
/// Throws DataError naming `subject` and the offset for everything whose meaning differs and that is not written above:
/// \w, \b, scripts, class intersections, back references, inline options.
std::string to_pcre2(std::string_view pattern, std::string_view subject);

}  // namespace caravan
