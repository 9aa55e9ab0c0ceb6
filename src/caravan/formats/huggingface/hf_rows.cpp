#include "caravan/formats/huggingface/hf_rows.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// Endings of tensors in older files that are not parameters.
constexpr std::array<std::string_view, 5> kNotParameters{".attn.bias", ".attn.masked_bias", ".attention.bias",
                                                         ".attention.masked_bias", ".rotary_emb.inv_freq"};

/// For each Hugging Face tensor in the row.
std::vector<int64_t> their_shape(const HuggingfaceRow& row, const TensorShapes& ours) {
  std::vector<int64_t> shape = ours.at(row.ours.front());
  for (size_t i = 1; i < row.ours.size(); ++i) shape[0] += ours.at(row.ours[i])[0];
  shape[0] /= static_cast<int64_t>(row.theirs.size());
  if (row.form == WeightColumn::Form::transposed) std::reverse(shape.begin(), shape.end());
  shape[0] += row.unused_rows;
  return shape;
}

/// Old files of BERT call the weight and bias of a norm so.
std::string in_new_names(const std::string& name) {
  const auto with_ending = [&](std::string_view old, std::string_view now) {
    return name.substr(0, name.size() - old.size()).append(now);
  };
  if (name.ends_with("LayerNorm.gamma")) return with_ending("gamma", "weight");
  if (name.ends_with("LayerNorm.beta")) return with_ending("beta", "bias");
  return name;
}

/// Their name with the prefix, as in the table; "" for a tensor that is not a parameter.
std::string spelled(const HuggingfaceTable& table, const std::string& name) {
  if (std::any_of(kNotParameters.begin(), kNotParameters.end(), [&](auto end) { return name.ends_with(end); }))
    return "";
  if (std::ranges::find(table.unused, name) != table.unused.end()) return "";
  const std::string now = in_new_names(name);
  const bool is_full = now.starts_with(table.prefix) || std::ranges::find(table.outside, now) != table.outside.end();
  const std::string full = is_full ? now : table.prefix + now;
  return std::ranges::find(table.unused, full) != table.unused.end() ? "" : full;
}

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
  HuggingfaceTable all{.prefix = table.prefix};
  const auto add = [&](const std::vector<WeightColumn>& columns, const std::string& prefix,
                       const std::string& our_prefix) {
    for (const WeightColumn& column : columns) {
      if (column.ours.front() == "head.weight") all.head = full_name(column.theirs, prefix);
      if (column.theirs.front() == '/') all.outside.push_back(full_name(column.theirs, prefix));
      if (column.applies != nullptr && !column.applies(config)) continue;
      HuggingfaceRow row = full_row(column, prefix, our_prefix, config);
      if (ours.contains(row.ours.front())) all.rows.push_back(std::move(row));
    }
  };
  add(table.first, all.prefix, "");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const bool is_of_encoder = config.is_of_encoder(layer);
    add(is_of_encoder ? table.encoder_layer : table.layer,
        fmt::format("{}{}.{}.", table.prefix, is_of_encoder ? table.encoder_layers : table.layers,
                    is_of_encoder ? layer : layer - config.encoder_layers),
        fmt::format("blocks.{}.", layer));
  }
  add(config.classes > 0 ? table.classes : table.last, all.prefix, "");
  for (const WeightColumn& column : config.classes > 0 ? table.last : table.classes) {
    if (!config.is_of_head(column.ours.front())) continue;
    all.other_head.push_back(full_name(column.theirs, all.prefix));
    if (column.theirs.front() == '/') all.outside.push_back(all.other_head.back());
  }
  all.unused = table.unused;
  if (config.classes == 0) {
    all.unused.insert(all.unused.end(), table.unused_without_classes.begin(), table.unused_without_classes.end());
  }
  return all;
}

void refuse_tied_head(const std::string& name) {
  throw DataError({"import", name, "differs from the embedding that it is tied to", "",
                   "set tie_word_embeddings to false in config.json"});
}

void check_tensors(std::string_view op, const NamedShapes& tensors, const TensorShapes& wanted) {
  std::set<std::string> found;
  std::vector<std::string> unexpected;
  std::vector<std::string> missing;
  std::vector<std::string> other_shape;
  for (const auto& [name, shape] : tensors) {
    const auto want = wanted.find(name);
    if (want == wanted.end() || !found.insert(name).second) {
      unexpected.push_back(name);
    } else if (shape != want->second) {
      other_shape.push_back(fmt::format("{} is [{}], not [{}]", name, join(shape), join(want->second)));
    }
  }
  for (const auto& [name, shape] : wanted) {
    if (!found.contains(name)) missing.push_back(name);
  }
  std::string fact;
  const auto say = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    fact += fmt::format("{}{} {}: {}", fact.empty() ? "" : "; ", names.size(), what, some_of(names, 8));
  };
  say("missing", missing);
  say("unexpected", unexpected);
  say("of a different shape", other_shape);
  if (fact.empty()) return;
  throw DataError({std::string(op), "tensors", fact, "", "use the weights of the model that config.json describes"});
}

HuggingfaceNames find_parameters(const ModelConfig& config, const HuggingfaceTable& table, const TensorShapes& ours,
                                 const NamedShapes& theirs, bool may_lack_head) {
  HuggingfaceNames names;
  NamedShapes parameters;
  for (const auto& [name, shape] : theirs) {
    const std::string spelling = spelled(table, name);
    const bool is_other = std::ranges::find(table.other_head, spelling) != table.other_head.end();
    if (spelling.empty() || (may_lack_head && is_other)) continue;
    if (config.ties_head() && spelling == table.head) {
      names.tied_head = name;
      continue;
    }
    parameters.emplace_back(spelling, shape);
    names.of_file.emplace(spelling, name);
  }
  TensorShapes wanted;
  for (const HuggingfaceRow& row : table.rows) {
    const bool may_be_missing = may_lack_head && config.is_of_head(row.ours.front());
    for (const std::string& name : row.theirs) {
      if (!may_be_missing || names.of_file.contains(name)) wanted[name] = their_shape(row, ours);
    }
  }
  check_tensors("import", parameters, wanted);
  return names;
}

std::vector<TheirRows> ranges_of(const HuggingfaceRow& row, const TensorShapes& ours, size_t part, int64_t begin,
                                 int64_t rows) {
  int64_t before = 0;
  int64_t all = 0;
  for (size_t i = 0; i < row.ours.size(); ++i) {
    if (i == part) before = all;
    all += ours.at(row.ours[i]).front();
  }
  // By head, each group has its share of the rows of every part.
  const int64_t groups = row.form == WeightColumn::Form::by_head ? row.groups : 1;
  const int64_t of_group = ours.at(row.ours[part]).front() / groups;
  const int64_t of_tensor = all / static_cast<int64_t>(row.theirs.size());
  std::vector<TheirRows> ranges;
  for (int64_t to = 0; to < rows;) {
    const int64_t group = (begin + to) / of_group;
    const int64_t inside = (begin + to) % of_group;
    const int64_t at = group * (all / groups) + before / groups + inside;
    const int64_t count = std::min({rows - to, of_group - inside, of_tensor - at % of_tensor});
    ranges.push_back({static_cast<size_t>(at / of_tensor), at % of_tensor, to, count});
    to += count;
  }
  return ranges;
}

}  // namespace caravan
