#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/caravan/commands/prompts.h"
#include "apps/caravan/options/options.h"
#include "caravan/generate/load.h"

namespace caravan::app {

/// What the model is given for some prompts.
struct ModelPrompts {
  bool are_chats = false;  ///< written by the model's chat template; else texts to continue
  std::vector<Prompt> prompts;
};

/// With a model that has a chat template, and without --raw, a text is what a user says: rank 0 renders it, or the
/// messages of a file, with the template's prompt for a reply. Every rank calls it. Throws on every rank: as
/// ChatTemplate::prompt; UsageError for messages or --system with a model that has none.
ModelPrompts model_prompts(const GenerateArguments& arguments, const LanguageModel& model, Communicator& world,
                           const std::vector<PromptText>& prompts, const ContinuationOptions& options);

/// The beginning of a chat: the message of --system, or none.
nlohmann::ordered_json first_messages(const GenerateArguments& arguments);

}  // namespace caravan::app
