#include "caravan/cost/hardware_table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

const char* example_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::bytes: return "\"80GiB\"";
    case Quantity::bytes_per_second: return "\"300GB/s\", or \"200Gb/s\" for bits";
    case Quantity::seconds: return "\"5us\"";
    case Quantity::flops_per_second: return "\"312TFLOP/s\"";
  }
  return "";
}

}  // namespace

HardwareTable::HardwareTable(const toml::node& node, std::string name, std::string file,
                             const std::vector<std::string>& keys)
    : node_(node), name_(std::move(name)), file_(std::move(file)) {
  if (!node.is_table()) refuse_at(node, name_, "is not a table", "write its keys, as in docs/hardware.md");
  for (const auto& [key, value] : *node.as_table()) {
    if (keys.empty() || std::ranges::find(keys, key.str()) != keys.end()) continue;
    refuse_at(value, subject(std::string(key.str())), "no such key",
              fmt::format("the nearest is {}", nearest(key.str(), keys)));
  }
}

const toml::node* HardwareTable::find(const std::string& key) const { return node_.as_table()->get(key); }

std::optional<std::string> HardwareTable::text(const std::string& key) const {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  const auto value = node->value<std::string>();
  if (!value) refuse(key, "is not a text", "write text in quotes");
  return value;
}

double HardwareTable::quantity(const std::string& key, Quantity quantity, std::optional<double> otherwise,
                               Zero zero) const {
  const std::string action = fmt::format("write it as {}", example_of(quantity));
  const toml::node* node = find(key);
  if (node == nullptr && !otherwise) refuse(key, "is missing", fmt::format("add it: {}", example_of(quantity)));
  if (node == nullptr) return *otherwise;
  std::optional<double> value;
  if (node->is_number()) value = node->value<double>();
  if (const auto text = node->value<std::string>()) {
    value = parse_quantity(*text, quantity);
    if (!value) refuse(key, explain_quantity(*text, quantity), action);
  }
  if (!value || !std::isfinite(*value)) refuse(key, "is not a number", action);
  if (*value < 0) refuse(key, fmt::format("is {}, which is negative", *value), action);
  if (*value == 0 && zero == Zero::refused) refuse(key, "is zero", action);
  return *value;
}

int64_t HardwareTable::bytes(const std::string& key, std::optional<int64_t> otherwise, Zero zero) const {
  const double value =
      quantity(key, Quantity::bytes, otherwise ? std::optional(static_cast<double>(*otherwise)) : std::nullopt, zero);
  if (value >= 0x1p62) refuse(key, "is too large", "correct it");
  return std::llround(value);
}

int64_t HardwareTable::count(const std::string& key, std::optional<int64_t> otherwise) const {
  const toml::node* node = find(key);
  if (node == nullptr && !otherwise) refuse(key, "is missing", "add it: a whole number of 1 or more");
  if (node == nullptr) return *otherwise;
  const auto value = node->is_integer() ? node->value<int64_t>() : std::nullopt;
  if (!value || *value < 1 || *value > kMostDevices) refuse(key, "is not a whole number of 1 or more", "correct it");
  return *value;
}

double HardwareTable::number(const std::string& key, double otherwise, double least, double most) const {
  const toml::node* node = find(key);
  if (node == nullptr) return otherwise;
  const auto value = node->is_number() ? node->value<double>() : std::nullopt;
  if (value && std::isfinite(*value) && *value >= least && *value <= most) return *value;
  refuse(key,
         std::isinf(most) ? fmt::format("is not a number of {} or more", least)
                          : fmt::format("is not a number from {} to {}", least, most),
         "correct it");
}

bool HardwareTable::flag(const std::string& key, bool otherwise) const {
  const toml::node* node = find(key);
  if (node == nullptr) return otherwise;
  if (!node->is_boolean()) refuse(key, "is neither true nor false", "write one of them");
  return node->value_or(otherwise);
}

std::vector<HardwareTable> HardwareTable::list(const std::string& key, const std::vector<std::string>& keys) const {
  std::vector<HardwareTable> tables;
  const toml::node* node = find(key);
  if (node == nullptr) return tables;
  if (!node->is_array()) refuse(key, "is not a list of tables", fmt::format("write [[{}]] and its keys below", key));
  for (const toml::node& one : *node->as_array()) {
    tables.emplace_back(one, fmt::format("[[{}]] {}", key, tables.size() + 1), file_, keys);
  }
  return tables;
}

void HardwareTable::refuse(const std::string& key, const std::string& fact, const std::string& action) const {
  const toml::node* node = node_.as_table()->get(key);
  refuse_at(node == nullptr ? node_ : *node, subject(key), fact, action);
}

void HardwareTable::refuse_at(const toml::node& node, const std::string& subject, const std::string& fact,
                              const std::string& action) const {
  const auto line = node.source().begin.line;
  throw DataError({.op = "hardware",
                   .subject = subject,
                   .fact = fact,
                   .where = line > 0 ? fmt::format("{}:{}", file_, line) : file_,
                   .action = action});
}

std::string HardwareTable::subject(const std::string& key) const {
  return name_.empty() ? key : fmt::format("{}, {}", name_, key);
}

std::vector<std::pair<std::string, const toml::node*>> in_order(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(std::string(key.str()), &node);
  std::ranges::stable_sort(entries, {}, [](const auto& entry) {
    const toml::source_position& at = entry.second->source().begin;
    return std::pair(at.line, at.column);
  });
  return entries;
}

}  // namespace caravan
