#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/formats/checkpoint/manifest.h"
#include "tests/data/support.h"

namespace caravan::testing {

/// Makes of a run with lora.experts = false what versions wrote in which experts had no adapters: neither recipe nor
/// config says so.
inline void forget_experts(const std::filesystem::path& run) {
  const auto forget = [](std::string recipe) {
    const std::string line = "\nexperts = false\n";
    const size_t at = recipe.find(line);
    EXPECT_NE(at, std::string::npos);
    return at == std::string::npos ? recipe : recipe.replace(at, line.size(), "\n");
  };
  write_file(run / "recipe.toml", forget(read_file(run / "recipe.toml")));
  for (const std::filesystem::path& folder : list_checkpoints(run)) {
    Manifest manifest = Manifest::read(folder);
    manifest.info.recipe = forget(manifest.info.recipe);
    nlohmann::ordered_json model = nlohmann::ordered_json::parse(manifest.info.model);
    EXPECT_EQ(model.at("lora").erase("experts"), 1U);
    manifest.info.model = model.dump();
    write_file(folder / kManifestName, manifest.to_json());
  }
}

}  // namespace caravan::testing
