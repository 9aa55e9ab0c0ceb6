// docs/models.md lists the architectures. CARAVAN_WRITE_DOCS=1 writes it.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/nn/model_fields.h"
#include "caravan/registry/registry.h"
#include "caravan/registry/split.h"

namespace caravan::models_doc_test {
namespace {

/// Before a test adds one.
const std::vector<ArchitectureRow> kRows(architectures().begin(), architectures().end());

const char* const kFile = CARAVAN_SOURCE_DIR "/docs/models.md";

/// A model of usual sizes, which every degree below divides.
ModelConfig usual_model(const ArchitectureRow& row) {
  ModelConfig config;
  set_architecture(config, row);
  config.layers = 8;
  config.width = 64;
  config.heads = 16;
  config.kv_heads = 16;
  config.vocabulary = 1024;
  if (row.base.has_encoder()) {
    config.encoder_layers = 4;
    config.source_context = config.context;
  }
  if (config.moe.is_used()) config.moe.experts = 8;
  return config;
}

std::string fits(const char* kind, int64_t degree, const ModelConfig& config) {
  const Split split{Setting("tensor_parallel", kind), degree};
  return split.misfit(config) ? "no" : "yes";
}

/// What a row's base changes in a GPT-2.
std::string settings_of(const ArchitectureRow& row) {
  ModelConfig config;
  set_architecture(config, row);
  std::string text;
  for (const ModelField& field : model_fields()) {
    if (!field.is_architecture() || field.is_same(config, ModelConfig{})) continue;
    text += (text.empty() ? "" : ", ") + field.key.substr(field.key.find('.') + 1) + " " + field.text_of(config);
  }
  return text.empty() ? "those of the defaults" : text;
}

std::string page() {
  std::ostringstream text;
  text
      << "# Models\n\n"
         "Generated from the table of architectures (`tests/formats/models_doc_test.cpp`).\n\n"
         "`model.kind` of a recipe names an architecture; `caravan import`, `train.init_from` and `caravan generate`\n"
         "take Hugging Face folders of its model type. Each of them trains from scratch and from other weights, with\n"
         "every data-parallel technique and pipelines, and is exported to a folder that transformers loads.\n\n"
         "| `model.kind` | class in transformers | `data.task` | 1d | 2d | 3d | context | experts | adapters in PEFT's "
         "format | commands |\n"
         "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const ArchitectureRow& row : kRows) {
    const ModelConfig config = usual_model(row);
    const auto& columns = row.weights.layer;
    const bool is_by_head =
        std::ranges::find(columns, WeightColumn::Form::by_head, &WeightColumn::form) != columns.end();
    const bool sees_all = !config.arch.is_causal, has_encoder = config.has_encoder();
    const char* tasks = sees_all ? "masked, classify" : has_encoder ? "spans, pairs" : "next, pairs, classify";
    const char* commands = sees_all      ? "fill-mask, evaluate, classify, embed"
                           : has_encoder ? "generate, evaluate"
                                         : "generate, evaluate, classify, embed";
    text << "| `" << row.name << "` | " << row.their_class << " | " << tasks << " | " << fits("1d", 4, config) << " | "
         << (config.moe.is_used() ? "no" : fits("2d", 4, config)) << " | "
         << (config.moe.is_used() ? "no" : fits("3d", 8, config)) << " | "
         << (has_encoder ? "no"
             : sees_all  ? "ulysses"
                         : "yes")
         << " | " << (config.moe.is_used() ? "yes" : "") << " | "
         << (is_by_head ? "of the MLP and the output only" : "yes") << " | " << commands << " |\n";
  }
  text << "\n1d, 2d and 3d are kinds of tensor parallelism ([tensor_parallel](tensor_parallel.md)), ulysses one of\n"
          "context parallelism. A model with classes of texts (`data.task = \"classify\"`) has the class\n"
          "`..ForSequenceClassification` in transformers, for bert, gpt2 and the relatives of llama.\n\n"
          "A model that is larger than memory runs layer by layer from disk, whatever its architecture: `--offload "
          "disk`\n"
          "of generate, fill-mask, classify and embed ([offload](offload.md#a-model-larger-than-memory)).\n\n"
          "## Settings\n\n"
          "What each of them changes in a GPT-2. Any of these settings may be given beside `model.kind`, by the name "
          "of\n"
          "its key: `model.window = 512`. A model that no architecture of transformers computes trains and generates,\n"
          "and its export is an error that names the setting and the nearest architecture.\n\n";
  for (const ArchitectureRow& row : kRows) text << "- `" << row.name << "`: " << settings_of(row) << "\n";
  text << "\n## An architecture of your own\n\n"
          "A row is data: what it computes, the columns of its config.json and the names of its weights\n"
          "(`caravan/formats/huggingface/architectures/architecture_row.h`; `columns.h` has the columns that families\n"
          "share). `add_architecture(row)` adds one to your program, before it reads a config; in this library, see\n"
          "`HACKING.md`.\n";
  return text.str();
}

TEST(Models, AreListedInTheDocuments) {
  if (std::getenv("CARAVAN_WRITE_DOCS") != nullptr) std::ofstream(kFile) << page();
  std::ifstream file(kFile);
  std::stringstream written;
  written << file.rdbuf();
  EXPECT_EQ(written.str(), page())
      << "write it again: CARAVAN_WRITE_DOCS=1 test_core --cases=tests/formats/models_doc_test.cpp";
}

}  // namespace
}  // namespace caravan::models_doc_test
