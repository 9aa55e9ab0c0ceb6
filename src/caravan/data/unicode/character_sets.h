#pragma once

#include <span>
#include <string>
#include <utility>

namespace caravan {

/// The code points first..last.
struct CodePoints {
  char32_t first;
  char32_t last;
};

/// Sets of characters as Hugging Face's `tokenizers` has them. It takes general categories from a package that is of
/// Unicode 8.0, and marks from one of 9.0, which no library offers: so these are tables, made from the package itself
/// by asking it for every code point.
std::span<const CodePoints> punctuation() noexcept;  ///< P, and the other punctuation of ASCII
bool is_white_space(char32_t point) noexcept;        ///< White_Space
/// Cc, Cf and Co, but not tab, line feed and carriage return.
bool is_other(char32_t point) noexcept;
bool is_nonspacing_mark(char32_t point) noexcept;  ///< Mn
bool is_mark(char32_t point) noexcept;             ///< M, of 9.0
/// A mark that was added between Unicode 14.0 and 17.0.
bool is_late_mark(char32_t point) noexcept;

/// A class of PCRE2 with these members.
std::string class_of(std::span<const CodePoints> ranges);

/// The small letter, by Unicode 17.0 and without regard to neighbours or language. The second is 0 but for U+0130.
std::pair<char32_t, char32_t> to_lowercase(char32_t point) noexcept;

}  // namespace caravan
