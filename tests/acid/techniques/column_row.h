#pragma once

#include "caravan/module/plan/plan.h"

namespace caravan::testing {

/// Test-only technique: attention and MLP split over one axis by columns, then rows (Megatron's tensor parallelism);
/// the stream stays invariant.
inline Plan column_row(const std::string& axis) {
  const Layout invariant{{axis, Invariant{}}}, replicate{{axis, Replicate{}}}, partial{{axis, Partial{}}};
  const Layout rows{{axis, Shard{0}}}, columns{{axis, Shard{1}}};
  Plan plan{.name = "column_row", .axes = {axis}};
  for (const std::string block : {"*.attention", "*.mlp"})
    plan.rows.push_back({.pattern = block, .inputs = {replicate}});
  for (const std::string split : {"*.query", "*.key", "*.value", "*.up", "*.gate"}) {
    plan.rows.push_back({.pattern = split, .parameters = {{"weight", rows}, {"bias", rows}}});
  }
  for (const std::string whole : {"*.output", "*.down"}) {
    plan.rows.push_back({.pattern = whole,
                         .parameters = {{"weight", columns}, {"bias", invariant, invariant, partial}},
                         .outputs = {invariant}});
  }
  return plan;
}

/// Drops the rows that match nothing in `model`: GPT-2 has no gate, Llama no biases.
inline Plan fitted(Plan plan, Module& model) {
  const auto is_there = [&](const std::string& pattern) {
    for (const Module* module : model.modules()) {
      if (module->name().ends_with(pattern.substr(1))) return true;
    }
    return false;
  };
  std::erase_if(plan.rows, [&](const Plan::Row& row) { return !is_there(row.pattern); });
  const std::vector<Parameter*> parameters = model.parameters();
  const bool has_biases = std::any_of(parameters.begin(), parameters.end(), [](const Parameter* parameter) {
    return parameter->name().ends_with(".up.bias");
  });
  for (Plan::Row& row : plan.rows) {
    if (!has_biases) std::erase_if(row.parameters, [](const auto& parameter) { return parameter.name == "bias"; });
  }
  return plan;
}

}  // namespace caravan::testing
