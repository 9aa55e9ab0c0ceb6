#pragma once

#include <string>
#include <string_view>

namespace caravan {

/// Translates a pattern from the dialect of tokenizer.json files (Oniguruma, Ruby syntax) to PCRE2 in UTF mode with
/// PCRE2_MULTILINE. It matches the same texts. What differs:
///   \s        the 25 characters of White_Space, listed: PCRE2's \s lacks U+0085, and older versions do not know the
///             name of the property
///   \d, \p{L} with the code points of unicode_additions(); only general categories
///   (?i:..)   only ASCII, without "ss", "st", "ff", "fi", "fl", which Oniguruma also matches as one character
///   X{2,3}+   means (?:X{2,3})+ in Oniguruma; X{2}? means (?:X{2})?
/// Throws DataError naming `subject` and the offset for everything else whose meaning differs: \w, \b, scripts, class
/// intersections, back references, inline options.
std::string to_pcre2(std::string_view pattern, std::string_view subject);

/// The members of a general category as the content of a class of PCRE2: with the code points of unicode_additions().
std::string category_members(std::string_view category);
/// The same of \w, as UTS 18 of Unicode defines it.
std::string word_members();
/// The same of White_Space.
std::string_view white_space_members() noexcept;

}  // namespace caravan
