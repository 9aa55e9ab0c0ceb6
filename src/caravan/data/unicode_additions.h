#pragma once

#include <span>
#include <string_view>

namespace caravan {

/// Code points first..last that Unicode gave a general category after version 14.0.
struct UnicodeAddition {
  char32_t first;
  char32_t last;
  std::string_view category;  ///< "Lo"
};

/// What versions 15.0 to 16.0 added, in order. The PCRE2 of a distribution knows 14.0 or any later version; with these
/// ranges beside its \p{..} the same text gives the same token ids whatever is installed, and those of Hugging Face's
/// `tokenizers`, which is at 16.0.
std::span<const UnicodeAddition> unicode_additions() noexcept;

}  // namespace caravan
