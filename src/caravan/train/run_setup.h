#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/step/stepper.h"
#include "caravan/train/dataset/prepare.h"
#include "caravan/train/folder/run_state.h"
#include "caravan/train/train.h"

namespace caravan {

// What a run does before its first step.

/// How often ranks that wait for each other's work exchange something, so that none times out.
std::chrono::milliseconds beat_of(const Recipe& recipe);

/// How ranks wait for each other's data.
JointWork joint_work(const TrainOptions& options);

/// The mesh of the ranks, after checking that all have the same inputs, on which everything later relies. Every rank
/// calls it. Throws as refuse_different_start.
Mesh agreed_mesh(const TrainOptions& options, const std::shared_ptr<Communicator>& world);

/// The data, checked to be the same on every rank. Every rank calls it. Throws as prepare_dataset and
/// refuse_different_data.
Dataset agreed_dataset(const TrainOptions& options, const Mesh& mesh);

/// make_stepper for the present `state`, with its checkpoint loaded. The state outlives the stepper.
std::unique_ptr<Stepper> make_stepper(RunState& state, const Recipe& recipe, int64_t num_micro_batches);

/// What is beside the file data.tokenizer: which of its tokens are special, and a chat template; that of
/// data.chat_template comes before it.
std::map<std::string, std::string> tokenizer_files(const Recipe& recipe);
/// Text settings of a model that the run starts from, with the template of data.chat_template if it has one.
std::map<std::string, std::string> with_own_template(std::map<std::string, std::string> files, const Recipe& recipe);

RunOrigin origin_of(const Dataset& dataset, const Numerics& numerics);

/// What a run of this data has taken from the model that it starts from; `left`: see load_weights.
std::vector<std::string> source_notes(const InitSource& source, const std::vector<std::string>& left,
                                      const Dataset& dataset, const Recipe::Data& data);

struct NoteSources {
  const Recipe& recipe;
  const TrainOptions& options;
  const Mesh& mesh;
  const Dataset& dataset;
  const TaskRows& rows;
  int64_t step;  ///< the first step follows this one
};
/// Notes for the user about recipe and data before the first step, a line each.
std::vector<std::string> start_notes(const NoteSources& of);

}  // namespace caravan
