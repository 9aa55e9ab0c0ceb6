#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/caravan/options/option_groups.h"
#include "caravan/base/error.h"
#include "caravan/recipe/recipe.h"

namespace caravan::app {
namespace {

CLI::Validator whole_number(int least) {
  return {[least](const std::string& text) {
            const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
            const bool is_large = is_number && (least == 0 || text.find_first_not_of('0') != std::string::npos);
            return is_large ? "" : "'" + text + "' is not a whole number of at least " + std::to_string(least);
          },
          "", "whole number"};
}

/// How a token is chosen, and what ends a text.
void add_sampling(CLI::App& app, GenerateArguments& generate) {
  CLI::App* command = &app;
  command->add_option("--temperature", generate.temperature,
                      "sampling temperature; 0: always the most likely token (default: the model's, else 0.7)");
  command->add_option(
      "--top-k", generate.top_k,
      "sample from this many most likely tokens; 0: from all (default: the model's, else 20, but 0 with "
      "--top-p, --min-p or --typical-p)");
  command->add_option("--top-p", generate.top_p,
                      "sample from the most likely tokens that reach this total probability");
  command->add_option("--min-p", generate.min_p,
                      "sample from tokens of at least this times the largest probability; 0: from all");
  command->add_option("--typical-p", generate.typical_p,
                      "sample from the tokens of usual surprise that reach this total probability; 1: from all");
  command->add_option("--repetition-penalty", generate.repetition_penalty,
                      "makes tokens that occurred less likely; 1: no penalty");
  command->add_option("--frequency-penalty", generate.frequency_penalty,
                      "subtracted from a token's logit for each time it was generated, -2 to 2");
  command->add_option("--presence-penalty", generate.presence_penalty,
                      "subtracted from the logit of a token that was generated, -2 to 2");
  command
      ->add_option("--logit-bias", generate.logit_bias,
                   "TOKEN=VALUE adds VALUE, -100 to 100, to the logit of a token, given by id or text; may be given "
                   "several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(not_empty());
  command->add_option("--stop", generate.stop, "end before this text; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(not_empty());
}

void add_average(CLI::App& app, bool& average) {
  app.add_flag("--average", average, "use the average of a run's weights (optimizer.average) instead of the last ones");
}

/// What a prompt is: a text to continue, or a message.
void add_prompts(CLI::App& app, GenerateArguments& generate) {
  CLI::Option* prompt = app.add_option("--prompt", generate.prompt,
                                       fmt::format("the text to continue, or what a user says to a model with a chat "
                                                   "template; - reads it from standard input; default: \"{}\"",
                                                   Recipe().sample.prompt));
  CLI::Option* prompts =
      app.add_option("--prompts", generate.prompts,
                     "a file of them: one a line, or, in a .jsonl file, the field \"prompt\", or the \"messages\" (and "
                     "\"tools\") of a chat, of each line")
          ->check(not_empty())
          ->excludes(prompt);
  CLI::Option* samples = app.add_option("--samples", generate.samples, "number of continuations of each prompt");
  CLI::Option* system =
      app.add_option("--system", generate.system, "a message of the system, before those of the user");
  CLI::Option* raw = app.add_flag("--raw", generate.raw, "continue the prompt, though the model has a chat template")
                         ->excludes(system);
  CLI::Option* json = app.add_flag("--json", generate.json, "print one JSON object per continuation");
  CLI::Option* times = app.add_flag("--times", generate.times,
                                    "print to standard error how long prompts and texts took, without loading");
  CLI::Option* chat = app.add_flag("--chat", generate.chat,
                                   "a conversation: each line of standard input is answered; "
                                   "/reset forgets the lines before, /exit ends");
  for (CLI::Option* other : {prompt, prompts, samples, raw, json, times}) chat->excludes(other);
}

}  // namespace

void add_generate(CLI::App& app, CommandLine& line) {
  GenerateArguments& generate = line.generate;
  CLI::App* command =
      app.add_subcommand("generate", "continue a text, or answer a message, with a trained or imported model");
  command->add_option("source", generate.source,
                      "a run, a checkpoint or a Hugging Face folder; default: the newest run");
  add_prompts(*command, generate);
  command->add_option("--tokens", generate.tokens,
                      "number of tokens to generate; default: 120, with --chat those that fit the context");
  add_sampling(*command, generate);
  command->add_option("--seed", generate.seed, "seed of the sampling")->check(whole_number(0));
  command->add_flag(
      "--truncate", generate.truncate,
      "of a prompt with more tokens than the model's context, use the last ones; of a conversation (--chat) "
      "the last turns");
  command->add_option("--batch", generate.batch, "texts that are continued side by side; their texts are the same")
      ->check(whole_number(1));
  CLI::Option* beams =
      command->add_option("--beams", generate.beams, "search the likeliest text with this many beams, without sampling")
          ->check(whole_number(1))
          ->excludes("--times");  // a search reads its prompt several times
  command
      ->add_option("--length-penalty", generate.length_penalty,
                   "beams are compared by log probability / length^penalty; default: 1")
      ->needs(beams);
  CLI::Option* draft =
      command
          ->add_option("--draft", generate.draft,
                       "a smaller model of the same tokenizer, which proposes tokens; the text is the same")
          ->check(not_empty())
          ->excludes(beams);
  command->add_option("--draft-tokens", generate.draft_tokens, "tokens that it proposes at a time, 1 to 15")
      ->check(whole_number(1))
      ->needs(draft);
  add_average(*command, generate.average);
  command
      ->add_option("--precision", generate.precision,
                   "fp32, bf16 or fp16: of the weights in memory and of products; default: fp32, whatever the "
                   "files have")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--ranks", generate.ranks, "number of processes that share the model; default: 1");
  CLI::Option* tp = command->add_option("--tp", generate.tp,
                                        "ranks that share each layer; default: those that --pp "
                                        "and --ep leave");
  CLI::Option* pp = command->add_option("--pp", generate.pp, "ranks that hold layers one after another; default: 1");
  CLI::Option* ep = command->add_option("--ep", generate.ep, "ranks that share the experts; default: 1");
  for (CLI::Option* degree : {tp, pp, ep}) degree->check(whole_number(1));
  add_offload(*command, generate.offload);
  command->callback([&line] {
    line.command = CommandLine::Command::generate;
    check_offload(line.generate.offload, "generate");
  });
}

void add_evaluate(CLI::App& app, CommandLine& line) {
  EvaluateArguments& evaluate = line.evaluate;
  CLI::App* command = app.add_subcommand("evaluate", "loss, perplexity or accuracy of a model on texts, or on tasks");
  command->add_option("model", evaluate.model, "a run, a checkpoint or a Hugging Face folder")
      ->required()
      ->check(not_empty());
  CLI::Option* texts =
      command->add_option("texts", evaluate.texts, "texts: files, folders or patterns; plain or JSON lines");
  CLI::Option* field =
      command->add_option("--field", evaluate.field, "the field that has the text, for JSON lines")->check(not_empty());
  CLI::Option* set = command
                         ->add_option("--set", evaluate.overrides,
                                      "data.key=value: how the texts are read, as in a recipe; may be repeated")
                         ->expected(1, -1)
                         ->take_all();
  CLI::Option* context =
      command->add_option("--context", evaluate.context, "tokens that the model sees at once; default: its own number");
  CLI::Option* stride = command->add_option("--stride", evaluate.stride,
                                            "tokens from one window to the next; default: the context, no overlap");
  CLI::Option* batch = command->add_option("--batch", evaluate.batch, "windows of a forward pass");
  CLI::Option* tasks =
      command
          ->add_option("--tasks", evaluate.tasks,
                       "a .jsonl file of multiple-choice questions: \"context\" or \"query\", \"choices\", \"gold\"")
          ->check(not_empty());
  for (CLI::Option* of_texts : {texts, field, set, stride, batch}) tasks->excludes(of_texts);
  command
      ->add_option("--delimiter", evaluate.delimiter,
                   "text between the context and each choice of --tasks; default: a space, where there is none")
      ->needs(tasks);
  command->add_flag("--skip-bad", evaluate.skip_bad, "leave out and count the lines of --tasks that are not questions")
      ->needs(tasks);
  add_average(*command, evaluate.average);
  command->add_option("--ranks", evaluate.ranks, "number of processes; default: 1");
  command->add_flag("--json", evaluate.json, "print one JSON object");
  for (CLI::Option* count : {context, stride, batch}) count->check(whole_number(1));
  command->callback([&line] {
    line.command = CommandLine::Command::evaluate;
    if (!line.evaluate.texts.empty() || !line.evaluate.tasks.empty()) return;
    throw UsageError({"evaluate", "texts", "no file is named", "", "name a text file, or questions: --tasks FILE"});
  });
}

void add_hugging_face(CLI::App& app, CommandLine& line) {
  CLI::App* exporter = app.add_subcommand("export", "write a model in Hugging Face format");
  exporter->add_option("source", line.export_model.source,
                       "a run, a checkpoint or a Hugging Face folder; default: the newest run");
  exporter
      ->add_option("--out", line.export_model.out,
                   "new folder to write to; default: <source>/huggingface, in a run or checkpoint")
      ->check(not_empty());
  CLI::Option* adapter = exporter->add_flag("--adapter", line.export_model.adapter,
                                            "write the adapters alone, in PEFT's format, to <source>/adapter; "
                                            "otherwise they are merged into the weights");
  exporter
      ->add_option("--base", line.export_model.base,
                   "with --adapter: what the adapters name as the model that they belong to: a folder, or a name on "
                   "Hugging Face's hub")
      ->needs(adapter)
      ->check(not_empty());
  add_average(*exporter, line.export_model.average);
  exporter->callback([&line] {
    line.command = CommandLine::Command::export_model;
    if (!line.export_model.adapter || !line.export_model.base.empty()) return;
    throw UsageError({"export", "--adapter", "names no base model, without which PEFT cannot load the adapters", "",
                      "say what they belong to: --base FOLDER, or a name on Hugging Face's hub"});
  });
  CLI::App* importer = app.add_subcommand("import", "create a run folder from a Hugging Face model: docs/models.md");
  importer
      ->add_option("source", line.import_model.source, "folder with config.json, model.safetensors and tokenizer.json")
      ->required();
  importer->add_option("--out", line.import_model.out, "run folder to create; default: runs/<name>-N");
  importer
      ->add_option("--adapter", line.import_model.adapter,
                   "folder with adapters of the model in PEFT's format, which are merged into the weights")
      ->check(not_empty());
  importer->callback([&line] { line.command = CommandLine::Command::import_model; });
}

}  // namespace caravan::app
