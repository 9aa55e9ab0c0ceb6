#pragma once

#include <optional>

#include "apps/caravan/options/options.h"

namespace caravan::app {

// Each function runs a command and returns the exit code; throws what the library throws.

int run_program(const RunArguments& arguments);
int new_project(const NewArguments& arguments);
/// Inspects a run folder or a checkpoint, or a recipe with --recipe. Nothing: the recipe can be run, and the rank
/// program continues.
std::optional<int> inspect(const InspectArguments& arguments);
/// Predicts published runs. Nothing: it plans a recipe, and the rank program continues.
std::optional<int> plan(const PlanArguments& arguments);
int inspect_flight(const std::string& folder);
int plot(const PlotArguments& arguments);
int compare(const CompareArguments& arguments);
int report(const ReportArguments& arguments);
int inspect_data(const DataArguments& arguments);
int tokenizer(const TokenizerArguments& arguments);
int cache(const CacheArguments& arguments);
int about(const AboutArguments& arguments);  ///< version, completion, manual

// Commands of the rank program, because they need libtorch.
int train(const TrainArguments& arguments);
int generate(const GenerateArguments& arguments);
int ask(const AskArguments& arguments);  ///< fill-mask, classify, embed
int evaluate(const EvaluateArguments& arguments);
int export_model(const ExportArguments& arguments);
int import_model(const ImportArguments& arguments);
int inspect_recipe(const InspectArguments& arguments);
int inspect_layouts(const InspectArguments& arguments);   ///< inspect --layouts
int inspect_schedule(const InspectArguments& arguments);  ///< inspect --schedule
int plan_recipe(const PlanArguments& arguments);
int prove(const ProveArguments& arguments);
int bench_comm(const BenchArguments& arguments);
int doctor(const DoctorArguments& arguments);
int tune();                                              ///< doctor --tune
int measure_hardware(const DoctorArguments& arguments);  ///< doctor --hardware

}  // namespace caravan::app
