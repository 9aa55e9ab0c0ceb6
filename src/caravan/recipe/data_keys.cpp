#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/text.h"
#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

// Accesses a field of the recipe, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.member; }

/// One path or a list of them. `may_be_empty`: "" and [] name none.
RecipeKey paths(KeyName name, std::string help, Field<std::vector<std::string>> field, bool may_be_empty) {
  return {std::move(name), std::move(help),
          [field](const Recipe& recipe) -> RecipeValue {
            const std::vector<std::string>& all = field(const_cast<Recipe&>(recipe));  // NOLINT: only read
            if (all.size() == 1) return all.front();
            if (all.empty()) return std::string();
            return all;
          },
          [field, may_be_empty](Recipe& recipe, const RecipeValue& value) -> std::string {
            std::vector<std::string> all;
            if (const auto* one = std::get_if<std::string>(&value)) {
              all = {*one};
            } else if (const auto* many = std::get_if<std::vector<std::string>>(&value)) {
              all = *many;
            } else {
              return is_not(value, "a path or a list of paths");
            }
            if (may_be_empty && all == std::vector<std::string>{""}) all.clear();
            const bool has_empty = std::ranges::find(all, "") != all.end();
            if (has_empty || (all.empty() && !may_be_empty)) return "names no file";
            field(recipe) = all;
            return "";
          }};
}

RecipeKey data_sources() {
  return {{"data.sources", OnResume::content, AcrossRanks::differ},
          "a mixture in place of data.text: [{path = \"a.txt\", weight = 3}, {path = \"b\"}]; [] : none",
          [](const Recipe& recipe) -> RecipeValue { return recipe.data.sources; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* texts = std::get_if<std::vector<std::string>>(&value);
            const bool is_empty = texts != nullptr && texts->empty();
            const auto* sources = std::get_if<std::vector<DataSource>>(&value);
            if (sources == nullptr && !is_empty) {
              return is_not(value, "a list of {path = \"FILE\", weight = NUMBER}");
            }
            for (const DataSource& source : is_empty ? std::vector<DataSource>{} : *sources) {
              if (source.path.empty()) return "names no file";
              if (source.weight > 0 && source.weight <= 1e9) continue;
              return fmt::format("the weight of {} is {}, must be above 0 and at most 1e9", source.path, source.weight);
            }
            recipe.data.sources = is_empty ? std::vector<DataSource>{} : *sources;
            return "";
          }};
}

RecipeKey data_tokenizer() {
  return {{"data.tokenizer", OnResume::content, AcrossRanks::differ},
          "\"bytes\", the path of a tokenizer.json, or {train = 1024}: one trained on the text",
          [](const Recipe& recipe) -> RecipeValue {
            if (recipe.data.tokenizer.empty()) return TrainTokenizer{recipe.data.trained_vocabulary};
            return recipe.data.tokenizer;
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            if (const auto* train = std::get_if<TrainTokenizer>(&value)) {
              const std::string wrong = out_of({257, 1 << 20}, static_cast<double>(train->vocabulary));
              if (!wrong.empty()) return wrong;
              recipe.data.tokenizer.clear();
              recipe.data.trained_vocabulary = train->vocabulary;
            } else if (const auto* path = std::get_if<std::string>(&value); path != nullptr && !path->empty()) {
              recipe.data.tokenizer = *path;
            } else {
              return is_not(value, "\"bytes\", a path, or {train = VOCABULARY}");
            }
            return "";
          }};
}

/// A field of JSON lines that every line has, or a column of tables.
RecipeKey field_name(KeyName name, std::string help, Field<std::string> field) {
  RecipeKey key = text(std::move(name), std::move(help), std::move(field));
  key.set = [set = key.set](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* given = std::get_if<std::string>(&value);
    return given != nullptr && given->empty() ? "names no field" : set(recipe, value);
  };
  return key;
}

/// The names of the classes; [] for those that the records have.
RecipeKey class_names() {
  RecipeKey key = texts({"data.classes", OnResume::content},
                        "classify: the names of the classes, in order; []: those of the training records, sorted",
                        FIELD(data.task.classes));
  key.set = [set = key.set](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* names = std::get_if<std::vector<std::string>>(&value);
    if (names != nullptr && names->empty()) {
      recipe.data.task.classes.clear();
      return "";
    }
    if (names == nullptr || names->size() < 2) return "names one class: two or more are told apart";
    const std::set<std::string> distinct(names->begin(), names->end());
    return distinct.size() < names->size() ? "names a class twice" : set(recipe, value);
  };
  return key;
}

/// `key`, which is used with some values of data.task only.
RecipeKey of_tasks(RecipeKey key, const std::vector<std::string>& tasks) {
  std::vector<std::string> quoted;
  for (const std::string& task : tasks) quoted.push_back('"' + task + '"');
  const auto is_used = [tasks](const Recipe& recipe) {
    return std::ranges::find(tasks, recipe.data.task.kind) != tasks.end();
  };
  const std::string reason = fmt::format("is used with data.task = {} only", fmt::join(quoted, " or "));
  // Another reason of the key to be idle comes second.
  key.idle = [is_used, reason, idle = key.idle](const Recipe& recipe) {
    return is_used(recipe) ? idle(recipe) : reason;
  };
  return key;
}

/// Chats are whole unless the recipe says otherwise.
RecipeKey data_fill() {
  RecipeKey key = choice({"data.fill", OnResume::history},
                         "sequences are windows of the text (\"stream\"), or hold whole documents and chats "
                         "(\"best_fit\", for chats the default)",
                         FIELD(data.fill), {"stream", "best_fit"});
  key.get = [](const Recipe& recipe) -> RecipeValue {
    return std::string(recipe.data.fills_best() ? "best_fit" : "stream");
  };
  return key;
}

const std::vector<std::string> kTextTasks{"next", "masked", "spans"};  ///< rows are windows of text

std::vector<RecipeKey> task_keys() {
  return {
      choice({"data.task", OnResume::history},
             "what is learned: the \"next\" token, \"masked\" tokens, \"spans\" of tokens, to \"classify\" texts, "
             "\"pairs\" of a source and its target, or the \"preference\" of one answer to another",
             FIELD(data.task.kind), {"next", "masked", "spans", "classify", "pairs", "preference"}),
      of_tasks(real({"data.mask_rate", OnResume::history}, "masked, spans: fraction of the tokens that are learned",
                    FIELD(data.task.mask_rate), {0.001, 0.9}),
               {"masked", "spans"}),
      of_tasks(boolean({"data.whole_words", OnResume::history}, "masked: all tokens of a word, or none of them",
                       FIELD(data.task.whole_words)),
               {"masked"}),
      of_tasks(real({"data.span_length", OnResume::history}, "spans: their mean number of tokens",
                    FIELD(data.task.span_length), {1, 1000}),
               {"spans"}),
      of_tasks(text({"data.pair_field", OnResume::content},
                    "classify: field or column that has a second text; \"\": there is one text",
                    FIELD(data.task.pair_field)),
               {"classify"}),
      of_tasks(field_name({"data.label_field", OnResume::content},
                          "classify: field or column that has the class, a name or a whole number",
                          FIELD(data.task.label_field)),
               {"classify"}),
      of_tasks(class_names(), {"classify"}),
      of_tasks(field_name({"data.source_field", OnResume::content}, "pairs: field or column that has the source",
                          FIELD(data.task.source_field)),
               {"pairs"}),
      of_tasks(field_name({"data.target_field", OnResume::content}, "pairs: field or column that has the target",
                          FIELD(data.task.target_field)),
               {"pairs"}),
      of_tasks(field_name({"data.prompt_field", OnResume::content},
                          "preference: field or column that has the prompt; chats may have it in both answers",
                          FIELD(data.task.preference.prompt_field)),
               {"preference"}),
      of_tasks(field_name({"data.chosen_field", OnResume::content},
                          "preference: field or column that has the preferred answer",
                          FIELD(data.task.preference.chosen_field)),
               {"preference"}),
      of_tasks(field_name({"data.rejected_field", OnResume::content},
                          "preference: field or column that has the other answer",
                          FIELD(data.task.preference.rejected_field)),
               {"preference"}),
  };
}

std::vector<RecipeKey> text_keys() {
  return {
      only_with(
          paths({"data.text", OnResume::content, AcrossRanks::differ},
                "text or JSON lines: a file, a folder, a pattern such as \"texts/*.jsonl.gz\", or a list",
                FIELD(data.text), false),
          [](const Recipe& recipe) { return recipe.data.sources.empty(); }, "is not used with data.sources"),
      data_sources(),
      of_tasks(boolean({"data.streaming", OnResume::history},
                       "tokenize texts or chats during training: for those larger than memory", FIELD(data.streaming)),
               kTextTasks),
      of_tasks(choice({"data.format", OnResume::content},
                      "what a line of JSON lines holds: a text, or a chat, of which only the assistant's messages are "
                      "learned",
                      FIELD(data.format), {"text", "chat"}),
               {"next", "preference"}),
      only_with(
          text({"data.chat_template", OnResume::content, AcrossRanks::differ},
               "a file with the chat template; \"\": that of the tokenizer's folder", FIELD(data.chat_template)),
          [](const Recipe& recipe) { return recipe.data.has_chats(); }, "is used with data.format = \"chat\" only"),
      of_tasks(text({"data.field", OnResume::content},
                    "field or column that has the text, or the messages of a chat; \"\": \"text\" or \"messages\"",
                    FIELD(data.field)),
               {"next", "masked", "spans", "classify"}),
      boolean({"data.skip_bad_lines", OnResume::content},
              "leave out JSON lines that lack the field or are not JSON; else they are errors",
              FIELD(data.skip_bad_lines)),
      paths({"data.validation", OnResume::content, AcrossRanks::differ},
            "separate text for validation; \"\": a part of each file", FIELD(data.validation), true),
      only_with(
          real({"data.validation_fraction", OnResume::content},
               "fraction at the end of each file that is for validation", FIELD(data.validation_fraction), {1e-6, 0.9}),
          [](const Recipe& recipe) { return recipe.data.validation.empty(); }, "is not used with data.validation"),
      data_tokenizer(),
      of_tasks(choice({"data.pack", OnResume::history}, "documents in one sequence see each other, or each only itself",
                      FIELD(data.pack), {"none", "documents"}),
               {"next"}),
      of_tasks(data_fill(), {"next"}),
      only_with(
          choice({"data.positions", OnResume::history},
                 "positions in a packed document: restart from 0, or continue along the sequence",
                 FIELD(data.positions), {"restart", "continue"}),
          [](const Recipe& recipe) { return recipe.data.packs_documents(); },
          "is used with data.pack = \"documents\" only"),
  };
}

}  // namespace

std::vector<RecipeKey> data_keys() {
  std::vector<RecipeKey> keys = task_keys();
  for (RecipeKey& key : text_keys()) keys.push_back(std::move(key));
  return keys;
}

std::vector<RecipeKey> preference_keys() {
  const auto is_dpo = [](const Recipe& recipe) { return recipe.data.task.preference.loss == "dpo"; };
  return {
      of_tasks(choice({"preference.loss", OnResume::listed},
                      "loss of a pair: \"dpo\" (arXiv 2305.18290), or \"ipo\" (arXiv 2310.12036)",
                      FIELD(data.task.preference.loss), {"dpo", "ipo"}),
               {"preference"}),
      of_tasks(real({"preference.beta", OnResume::listed}, "how strongly the model is held to the reference",
                    FIELD(data.task.preference.beta), {1e-6, 1e6}),
               {"preference"}),
      of_tasks(only_with(real({"preference.label_smoothing", OnResume::listed},
                              "dpo: fraction of the pairs that are taken to be labelled the wrong way round",
                              FIELD(data.task.preference.label_smoothing), {0, 0.5}),
                         is_dpo, "is used with preference.loss = \"dpo\" only"),
               {"preference"}),
      of_tasks(text({"preference.reference", OnResume::listed},
                    "folder of the reference model: a run, a checkpoint, a Hugging Face folder; \"\": what the run "
                    "starts from, or with adapters the weights under them",
                    FIELD(data.task.preference.reference)),
               {"preference"}),
  };
}

#undef FIELD

}  // namespace caravan
