#pragma once

#include <cstdint>
#include <vector>

#include "caravan/data/tokenizer/tokenizer.h"

namespace caravan {

/// How a token stands in a word.
enum class WordPart : uint8_t { begins, continues, special };

/// Which ids are special tokens; all others begin a word.
std::vector<WordPart> special_parts(const Tokenizer& tokenizer);

/// The same with the words of the tokenizer, by what its file says: a token continues a word
///   WordPiece                            if it begins with the model's prefix ("##");
///   Metaspace, or spaces replaced by ▁   if it does not begin with that;
///   ByteLevel                            if it does not begin with a space or line break ("Ġ"): a comma continues
///                                        the word before it;
///   WordLevel                            never.
/// Added tokens begin words. Throws UsageError for a file that says none of this, as one whose tokens end in "</w>".
std::vector<WordPart> word_parts(const Tokenizer& tokenizer);

}  // namespace caravan
