#pragma once

#include <span>
#include <string_view>

namespace caravan {

/// Code points first..last that were assigned a general category after Unicode 14.0.
struct UnicodeAddition {
  char32_t first;
  char32_t last;
  std::string_view category;  ///< "Lo"
};

/// The additions of versions 15.0 to 16.0, sorted. The installed PCRE2 may implement 14.0 or any later version. With
/// these ranges added to its \p{..}, a text has the same token ids with any PCRE2, equal to those of Hugging Face's
/// `tokenizers`, which implements 16.0.
std::span<const UnicodeAddition> unicode_additions() noexcept;

}  // namespace caravan
