#pragma once

#include "apps/caravan/commands/output.h"
#include "apps/caravan/options/options.h"
#include "caravan/generate/load.h"

namespace caravan::app {

/// generate --chat: answers each line of standard input, which rank 0 reads, with the lines and answers before it.
/// Every rank calls it. Returns the exit code: 130 if Ctrl-C ended it. Throws DataError for a model without a chat
/// template.
int chat(const GenerateArguments& arguments, Communicator& world, LanguageModel& model,
         const ContinuationOptions& options, const GeneratorOptions& together, Output& output);

}  // namespace caravan::app
