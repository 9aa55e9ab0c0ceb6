#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/evaluate_texts.h"
#include "apps/caravan/commands/model_ranks.h"
#include "apps/caravan/commands/tasks.h"
#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/comm/calls/agree.h"

namespace caravan::app {
namespace {

nlohmann::ordered_json to_json(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

std::string to_text(const Accuracy& accuracy) {
  const std::string mean = fmt::format("{:.4f}", accuracy.mean);
  return accuracy.standard_error ? fmt::format("{} +- {:.4f}", mean, *accuracy.standard_error) : mean;
}

void evaluate_tasks(const EvaluateArguments& arguments, LoadedModel& loaded, Communicator& world) {
  const ModelConfig& config = loaded.model->config();
  if (!config.continues_texts() || config.has_encoder()) {
    throw UsageError({"evaluate", "--tasks",
                      fmt::format("{} does not predict the next token of a text", config.arch.name), "",
                      "evaluate it on texts: caravan evaluate MODEL FILE"});
  }
  const SpecialTokens special = generation_tokens(loaded.text.tokens, loaded.text.generation());
  ScoringLimits limits{
      .begin = special.begin, .context = evaluated_context(arguments, config), .vocabulary = config.vocabulary};
  if (!limits.begin && !special.end.empty()) limits.begin = special.end.front();
  TaskFile file;
  const auto read = [&] {
    file = read_tasks(arguments.tasks, arguments.skip_bad, [&](const Question& question) {
      return encode_question(loaded.tokenizer, question, arguments.delimiter, limits);
    });
  };
  all_or_none(world, read, "tasks");
  check_same_evaluation(world, loaded,
                        {{"the tasks", content_hash(MappedFile(arguments.tasks, "evaluate").text()).hex()},
                         {"--context", std::to_string(limits.context)},
                         {"--delimiter", arguments.delimiter.value_or("a space where there is none")},
                         {"--skip-bad", arguments.skip_bad ? "yes" : "no"}});
  const RoundCounter counter(world);
  const ChoiceResult result = evaluate_choices(*loaded.model, world, file.questions,
                                               [&](int64_t done, int64_t total) { counter.show(done, total); });
  if (world.rank() != 0) return;
  if (arguments.json) {
    const nlohmann::ordered_json line{{"model", loaded.origin},
                                      {"tasks", arguments.tasks},
                                      {"questions", file.questions.size()},
                                      {"skipped", file.skipped},
                                      {"acc", result.plain.mean},
                                      {"acc_stderr", to_json(result.plain.standard_error)},
                                      {"acc_norm", result.per_character.mean},
                                      {"acc_norm_stderr", to_json(result.per_character.standard_error)}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("model          {}\nquestions      {}\n", loaded.origin, file.questions.size());
  if (file.skipped > 0) fmt::print("skipped        {} bad lines\n", file.skipped);
  fmt::print("acc            {}\nacc_norm       {}\n", to_text(result.plain), to_text(result.per_character));
}

}  // namespace

int evaluate(const EvaluateArguments& arguments) {
  const ModelRanks ranks(arguments.ranks);
  LoadedModel loaded = load_model(arguments.model, ranks.mesh(), weights_of(arguments.average));
  if (arguments.tasks.empty()) {
    evaluate_texts(arguments, loaded, ranks.world());
  } else {
    evaluate_tasks(arguments, loaded, ranks.world());
  }
  return 0;
}

}  // namespace caravan::app
