#include "caravan/train/run_setup.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/train/agreement.h"
#include "caravan/train/dataset/dataset_parts.h"
#include "caravan/train/place.h"

namespace caravan {

std::chrono::milliseconds beat_of(const Recipe& recipe) {
  // A rank that waits for its peers must see several beats before its time-out.
  const auto quarter = std::chrono::milliseconds(static_cast<int64_t>(recipe.comm.timeout_s * 1e3 / 4));
  return std::clamp(quarter, std::chrono::milliseconds(1), std::chrono::milliseconds(100));
}

JointWork joint_work(const TrainOptions& options) {
  JointWork work{.beat = beat_of(options.recipe), .stop_requested = options.stop_requested};
  if (TrainObserver* observer = options.observer) {
    work.progress = [observer](const DataProgress& progress) { observer->preparing(progress); };
  }
  return work;
}

Mesh agreed_mesh(const TrainOptions& options, const std::shared_ptr<Communicator>& world) {
  refuse_different_start(find_disagreement(*world, start_facts(options.recipe, options), "recipe and options"));
  plan_batch(options.recipe, world->size());  // before the data is prepared
  return Mesh::create(world, mesh_axes(options.recipe, world->size()));
}

Dataset agreed_dataset(const TrainOptions& options, const Mesh& mesh) {
  Dataset dataset = prepare_dataset(options.recipe.data, options.folders, mesh.world(), joint_work(options),
                                    host_name(), options.recipe.model.context);
  check_same_data(mesh.world(), dataset);
  return dataset;
}

std::unique_ptr<Stepper> make_stepper(RunState& state, const Recipe& recipe, int64_t num_micro_batches) {
  return make_stepper(stepper_inputs(state.trained(), recipe, num_micro_batches), recipe);
}

std::map<std::string, std::string> tokenizer_files(const Recipe& recipe) {
  const std::string& tokenizer = recipe.data.tokenizer;
  if (tokenizer.empty() || tokenizer == "bytes") return with_own_template({}, recipe);
  return with_own_template(read_tokenizer_files(std::filesystem::path(tokenizer).parent_path()), recipe);
}

std::map<std::string, std::string> with_own_template(std::map<std::string, std::string> files, const Recipe& recipe) {
  const std::string& own = recipe.data.chat_template;
  if (!own.empty()) files[kChatTemplateFile] = MappedFile(own, "data").text();
  return files;
}

RunOrigin origin_of(const Dataset& dataset, const Numerics& numerics) {
  return {.train_hash = dataset.train_hash().hex(),
          .validation_hash = dataset.validation.tokens.info().content.hex(),
          .numerics = numerics,
          .class_names = dataset.class_names};
}

std::vector<std::string> source_notes(const InitSource& source, const std::vector<std::string>& left,
                                      const Dataset& dataset, const Recipe::Data& data) {
  constexpr size_t kMost = 8;
  const std::vector<std::string>& classes = dataset.class_names;
  std::vector<std::string> notes{"starts with the weights of " + shown(source.folder).string()};
  if (differs_from_source(data, dataset.tokenizer)) {
    notes.push_back(fmt::format("reads text by {}, not by {} of these weights", shown(data.tokenizer).string(),
                                shown(data.source_tokenizer).string()));
  }
  if (!source.adapter.empty() && !classes.empty()) {
    notes.push_back("lora.adapter does not name the classes of its head, if any: they are taken to be " +
                    some_of(classes, kMost));
  }
  if (left.empty() && !classes.empty()) notes.push_back("keeps its head, of the classes " + some_of(classes, kMost));
  if (left.empty()) return notes;
  const bool have_classes = !source.tokens.classes.empty() && !classes.empty();
  notes.push_back((have_classes ? fmt::format("its head is of the classes {}, not {}: ",
                                              some_of(source.tokens.classes, kMost), some_of(classes, kMost))
                                : "its head is of another task, or missing: ") +
                  some_of(left, 4) + " are new");
  return notes;
}

std::vector<std::string> start_notes(const NoteSources& of) {
  std::vector<std::string> notes = recipe_notes(of.recipe);
  for (std::string& note : dataset_notes(of.dataset, of.rows, of.recipe)) notes.push_back(std::move(note));
  if (of.mesh["dp"].size() == 1 && !of.recipe.hook.is_none()) {
    notes.push_back(
        fmt::format("data_parallel.hook = \"{}\" has no effect on an axis dp of one rank, which reduces nothing; "
                    "what ranks of an earlier part left out is not added",
                    of.recipe.hook.name()));
  }
  const int64_t steps = of.recipe.train.steps;
  if (of.options.resumes() && of.step == steps) {
    notes.push_back(
        fmt::format("the run is complete (step {} of {}); to continue: --resume --set train.steps=M with M above {}",
                    steps, steps, steps));
  }
  return notes;
}

}  // namespace caravan
