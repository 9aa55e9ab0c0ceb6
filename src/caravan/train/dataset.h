#pragma once

#include <filesystem>

#include "caravan/data/token_file.h"
#include "caravan/data/tokenizer.h"
#include "caravan/train/recipe.h"

namespace caravan {

/// What a run reads: its tokenizer and its two texts as ids.
struct Dataset {
  Tokenizer tokenizer;
  TokenFile train;
  TokenFile validation;
};

/// Where files are looked for and kept.
struct DataFolders {
  std::filesystem::path home;      ///< relative paths that do not exist from here are looked up there; may be empty
  std::filesystem::path recipe{};  ///< and, before, there: the folder of the recipe; may be empty
  std::filesystem::path cache;     ///< of token files and trained tokenizers, by content hash
};

/// Opens what `data` names, from the cache where it was read before. A tokenizer is trained on the training text alone.
/// Throws DataError for text or tokenizer files that are missing, empty or not what they should be, ResourceError if
/// the cache cannot be written.
Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders);

/// Writes where each file of `data` was found in place of what the recipe says: the recipe that a run keeps then means
/// the same from another folder. A file that is nowhere stays as it is.
void resolve_files(Recipe::Data& data, const DataFolders& folders);

/// The file that `path` of a recipe means: itself, or that of the recipe's or the home folder. Throws DataError naming
/// where it was looked up if it is nowhere.
std::filesystem::path find_file(const std::string& path, const DataFolders& folders);

}  // namespace caravan
