#include "caravan/formats/huggingface/hf_rows.h"

#include <fmt/format.h>

namespace caravan {
namespace {

/// Their full name; a slash marks one outside the base model.
std::string full_name(const std::string& name, const std::string& prefix) {
  return name.front() == '/' ? name.substr(1) : prefix + name;
}

HuggingfaceRow full_row(const WeightColumn& column, const std::string& prefix, const std::string& our_prefix,
                        const ModelConfig& config) {
  const std::string theirs = full_name(column.theirs, prefix);
  HuggingfaceRow row{{}, {}, column.form, column.offset, column.unused_rows, config.num_kv_heads()};
  const size_t star = theirs.find('*');
  if (star == std::string::npos) {
    row.theirs.push_back(theirs);
  } else {
    for (int64_t expert = 0; expert < config.moe.experts; ++expert) {
      row.theirs.push_back(fmt::format("{}{}{}", theirs.substr(0, star), expert, theirs.substr(star + 1)));
    }
  }
  for (const std::string& name : column.ours) row.ours.push_back(our_prefix + name);
  return row;
}

}  // namespace

HuggingfaceTable huggingface_table(const ModelConfig& config, const TensorShapes& ours) {
  const WeightTable& table = architecture_of(config).weights;
  HuggingfaceTable all{table.prefix, "", {}};
  const auto add = [&](const std::vector<WeightColumn>& columns, const std::string& prefix,
                       const std::string& our_prefix) {
    for (const WeightColumn& column : columns) {
      if (column.ours.front() == "head.weight") all.head = full_name(column.theirs, prefix);
      HuggingfaceRow row = full_row(column, prefix, our_prefix, config);
      if (ours.contains(row.ours.front())) all.rows.push_back(std::move(row));
    }
  };
  add(table.first, all.prefix, "");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    add(table.layer, fmt::format("{}{}.{}.", table.prefix, table.layers, layer), fmt::format("blocks.{}.", layer));
  }
  add(table.last, all.prefix, "");
  return all;
}

}  // namespace caravan
