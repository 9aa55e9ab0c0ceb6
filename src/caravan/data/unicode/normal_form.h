#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace caravan {

/// Unicode's normalization forms.
enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// `text`, well-formed UTF-8, in `form`, as Hugging Face's `tokenizers` computes it: by Unicode 9.0. Returns `text`
/// itself if it is ASCII, else a view of `scratch`. Throws ResourceError if memory is exhausted.
std::string_view to_normal_form(std::string_view text, NormalForm form, std::string& scratch);

}  // namespace caravan
