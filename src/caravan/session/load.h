#pragma once

#include <filesystem>

#include "caravan/generate/load.h"
#include "caravan/session/session.h"

namespace caravan {

/// Loads a language model over the ranks of the session: see generate/load.h. `options` may be left out if the session
/// has an axis tp, pp or ep, or if tp takes all ranks.
inline LanguageModel load(const std::filesystem::path& source, const Session& session,
                          const LoadOptions& options = {}) {
  return load(source, session.mesh(), options);
}

}  // namespace caravan
