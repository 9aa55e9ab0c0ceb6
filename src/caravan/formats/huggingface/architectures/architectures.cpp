#include <algorithm>
#include <deque>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/architectures/rows.h"
#include "caravan/nn/model_fields.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

std::deque<ArchitectureRow>& rows() {
  static std::deque<ArchitectureRow> all{gpt2_row(),    llama_row(),     mistral_row(),   qwen2_row(), qwen3_row(),
                                         mixtral_row(), qwen2_moe_row(), qwen3_moe_row(), gemma_row(), gemma2_row(),
                                         gemma3_row(),  phi3_row(),      smollm3_row(),   olmo2_row(), gpt_neox_row(),
                                         opt_row(),     bloom_row(),     falcon_row(),    bert_row(),  t5_row()};
  return all;
}

/// What the row reads from its own config.json. Throws DataError if it refuses that.
ModelConfig read_back(const ModelConfig& config, const ArchitectureRow& row) {
  Json out{{"vocab_size", config.vocabulary}};
  for (const ConfigColumn& column : row.columns) column.write(config, out);
  ModelConfig back;
  set_architecture(back, row);
  back.vocabulary = config.vocabulary;
  back.classes = config.classes;
  const ConfigReader in(out, "", "config.json");
  for (const ConfigColumn& column : row.columns) column.read(in, back);
  return back;
}

struct Differences {
  size_t count = 0;
  std::string key{};
  std::string text{};
  bool is_refused = false;  ///< the row does not read what it writes
};

Differences differences(const ModelConfig& config, const ArchitectureRow& row) {
  Differences found;
  if (config.classes > 0 && row.weights.classes.empty()) {
    return {1, "model.classes",
            fmt::format("model.classes = {}, but {} tells no classes apart", config.classes, row.name)};
  }
  ModelConfig back;
  try {
    back = read_back(config, row);
  } catch (const DataError& error) {
    const std::string text =
        fmt::format("{} {} in the config.json of {}", error.text().subject, error.text().fact, row.name);
    return {.count = model_fields().size(), .key = "model.kind", .text = text, .is_refused = true};
  }
  const ModelConfig a = resolved(config), b = resolved(back);
  for (const ModelField& field : model_fields()) {
    if (!field.changes_logits() || field.is_same(a, b)) continue;
    if (found.count++ > 0) continue;
    found.key = field.key;
    found.text = fmt::format("{} = {}, but {} has {}", field.key, field.text_of(a), row.name, field.text_of(b));
  }
  return found;
}

}  // namespace

const std::deque<ArchitectureRow>& architectures() { return rows(); }

const ArchitectureRow* find_architecture(std::string_view name) {
  const auto found = std::ranges::find(rows(), name, &ArchitectureRow::name);
  return found == rows().end() ? nullptr : &*found;
}

void set_architecture(ModelConfig& config, const ArchitectureRow& row) {
  for (const ModelField& field : model_fields()) {
    if (field.is_architecture()) field.copy(row.base, config);
  }
  config.arch.name = row.name;
}

void add_architecture(ArchitectureRow row) {
  ModelConfig base = row.base;
  base.vocabulary = 1;
  base.arch.name = row.name;
  base.validate();
  if (const std::string text = difference_to(base, row); !text.empty()) {
    throw UsageError({"architecture", row.name, "its base is not what its columns read back: " + text, "",
                      "add a column for this setting, or leave it out of the base"});
  }
  const auto found = std::ranges::find(rows(), row.name, &ArchitectureRow::name);
  if (found == rows().end()) {
    rows().push_back(std::move(row));
  } else {
    *found = std::move(row);
  }
}

std::string difference_to(const ModelConfig& config, const ArchitectureRow& row) {
  return differences(config, row).text;
}

const ArchitectureRow& architecture_of(const ModelConfig& config) {
  std::vector<const ArchitectureRow*> in_order;  // its own row first, which also wins a tie
  for (const ArchitectureRow& row : rows()) {
    in_order.insert(row.name == config.arch.name ? in_order.begin() : in_order.end(), &row);
  }
  const ArchitectureRow* nearest = nullptr;
  Differences least;
  for (const ArchitectureRow* row : in_order) {
    Differences here = differences(config, *row);
    if (here.count == 0) return *row;
    // What its own row cannot say tells more than how it differs from others.
    if (here.is_refused && row->name == config.arch.name) here.count = 1;
    if (nearest != nullptr && here.count >= least.count) continue;
    least = std::move(here);
    nearest = row;
  }
  throw UsageError({"export", least.key, least.text + ": Hugging Face's transformers has no such model", "",
                    fmt::format("the nearest is {}: train with {} as it has it", nearest->name, least.key)});
}

}  // namespace caravan
