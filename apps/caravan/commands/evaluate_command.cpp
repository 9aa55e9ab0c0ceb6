#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/tasks.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"
#include "caravan/data/files/corpus.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/train/agreement.h"
#include "caravan/train/evaluation/evaluate.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

/// Rank 0's line on a terminal, which the result replaces.
class RoundCounter {
 public:
  explicit RoundCounter(const Communicator& world) : shows_(world.rank() == 0 && ::isatty(STDERR_FILENO) == 1) {}
  ~RoundCounter() {
    if (shows_) std::fputs("\r\033[K", stderr);
  }
  RoundCounter(const RoundCounter&) = delete;
  RoundCounter& operator=(const RoundCounter&) = delete;
  void show(int64_t done, int64_t total) const {
    if (shows_) fmt::print(stderr, "\rround {} of {}", done, total);
  }

 private:
  bool shows_;
};

int64_t context_of(const EvaluateArguments& arguments, const ModelConfig& config) {
  if (!config.continues_texts() || config.has_encoder()) {
    throw UsageError({"evaluate", "model",
                      fmt::format("{} does not predict the next token of a text", config.arch.name), "",
                      "train.eval_every evaluates it on its own task"});
  }
  const int64_t context = arguments.context.value_or(config.context);
  if (context > config.context) {
    throw UsageError({"evaluate", "--context",
                      fmt::format("{} is more than the model's context of {}", context, config.context), "",
                      fmt::format("use 1 to {}", config.context)});
  }
  if (const int64_t stride = arguments.stride.value_or(context); stride > context) {
    throw UsageError({"evaluate", "--stride", fmt::format("{} is more than the context of {}", stride, context), "",
                      fmt::format("use 1 to {}", context)});
  }
  return context;
}

TokenFile tokens_of(const EvaluateArguments& arguments, const Tokenizer& tokenizer) {
  const DataFolders folders = data_folders();
  std::vector<fs::path> files;
  for (const std::string& text : arguments.texts) {
    for (fs::path& file : find_texts(text, folders)) files.push_back(std::move(file));
  }
  const Corpus corpus(files, folders.cache, {.field = arguments.field});
  TokenFile tokens = open_or_build(folders.cache, corpus.documents(), tokenizer);
  trim_cache(folders.cache, folders.cache_limit_bytes);
  if (tokens.size() < 2) {
    throw DataError({"evaluate", join(arguments.texts),
                     fmt::format("has {} token, but an evaluation needs 2", tokens.size()), "", "give more text"});
  }
  return tokens;
}

/// The newest checkpoint of a run in progress may differ between ranks.
void check_same(Communicator& world, const LoadedModel& loaded, std::vector<SharedFact> facts) {
  facts.push_back({"the model", fs::path(loaded.origin).filename().string()});
  facts.push_back({"the tokenizer", loaded.tokenizer.hash().hex()});
  facts.push_back({"the program", program_build()});
  check_same_on_all_ranks(world, "evaluate", facts);
}

void evaluate_texts(const EvaluateArguments& arguments, LoadedModel& loaded, Communicator& world) {
  const int64_t context = context_of(arguments, loaded.model->config());
  std::optional<TokenFile> file;
  all_or_none(
      world, [&] { file.emplace(tokens_of(arguments, loaded.tokenizer)); }, "texts");
  const TokenFile& tokens = *file;
  const int64_t stride = arguments.stride.value_or(context);
  check_same(world, loaded,
             {{"the text", tokens.info().content.hex()},
              {"--context", std::to_string(context)},
              {"--stride", std::to_string(stride)},
              {"--batch", std::to_string(arguments.batch)}});
  // A window of a shorter text would be mostly padding.
  const int64_t width = std::min(context, tokens.size() - 1);
  const ValidationWindows windows(tokens, width, nullptr, std::min(stride, width));
  const RoundCounter counter(world);
  const auto result = caravan::evaluate(
      *loaded.model, world, windows,
      {.rows = arguments.batch, .progress = [&](int64_t done, int64_t total) { counter.show(done, total); }});
  if (!std::isfinite(result->loss)) {
    throw NumericsError({"evaluate", loaded.origin, "its loss is not finite", "", "use an earlier checkpoint"});
  }
  if (world.rank() != 0) return;
  if (arguments.json) {
    const nlohmann::ordered_json line{{"model", loaded.origin},
                                      {"texts", arguments.texts},
                                      {"tokens", windows.num_targets()},
                                      {"loss", result->loss},
                                      {"perplexity", std::exp(result->loss)},
                                      {"bits_per_byte", result->bits_per_byte},
                                      {"context", context},
                                      {"stride", stride}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("model          {}\ntokens         {}\n", loaded.origin, windows.num_targets());
  fmt::print("loss           {:.4f} nats per token\nperplexity     {:.4f}\nbits per byte  {:.4f}\n", result->loss,
             std::exp(result->loss), result->bits_per_byte);
}

nlohmann::ordered_json to_json(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

std::string to_text(const Accuracy& accuracy) {
  const std::string mean = fmt::format("{:.4f}", accuracy.mean);
  return accuracy.standard_error ? fmt::format("{} +- {:.4f}", mean, *accuracy.standard_error) : mean;
}

void evaluate_tasks(const EvaluateArguments& arguments, LoadedModel& loaded, Communicator& world) {
  const ModelConfig& config = loaded.model->config();
  const SpecialTokens special = generation_tokens(loaded.text.tokens, loaded.text.generation());
  ScoringLimits limits{
      .begin = special.begin, .context = context_of(arguments, config), .vocabulary = config.vocabulary};
  if (!limits.begin && !special.end.empty()) limits.begin = special.end.front();
  TaskFile file;
  const auto read = [&] {
    file = read_tasks(arguments.tasks, arguments.skip_bad, [&](const Question& question) {
      return encode_question(loaded.tokenizer, question, arguments.delimiter, limits);
    });
  };
  all_or_none(world, read, "tasks");
  check_same(world, loaded,
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
  plan_ranks(arguments.ranks, "", /*default_ranks=*/1);  // refuses --ranks that contradicts the environment
  const RankInfo info = RankInfo::from_environment();
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), info.local_world_size)});
  const auto store = open_store(info);
  const auto world = make_world("auto", info, store);
  LoadedModel loaded = load_model(arguments.model, Mesh::create(world, {{"dp", world->size()}}));
  if (arguments.tasks.empty()) {
    evaluate_texts(arguments, loaded, *world);
  } else {
    evaluate_tasks(arguments, loaded, *world);
  }
  return 0;
}

}  // namespace caravan::app
