#include "caravan/session/optimizer_record.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"

namespace caravan {
namespace {

constexpr const char* kLr = "lr";
constexpr int64_t kAbsent = INT64_MIN;  ///< below the bits of any option: those of -0.0

using ByParameter = std::map<std::string, const std::map<std::string, double>*>;

/// The groups that the parameters are in.
int64_t num_groups(const OptimizerRecord& record) {
  double most = -1;
  for (const OptimizerRecord::Group& group : record.groups) {
    const auto found = group.options.find(kGroup);
    if (found != group.options.end()) most = std::max(most, found->second);
  }
  return static_cast<int64_t>(most) + 1;
}

ByParameter by_parameter(const OptimizerRecord& record) {
  ByParameter all;
  for (const OptimizerRecord::Group& group : record.groups) {
    for (const std::string& name : group.parameters) all[name] = &group.options;
  }
  return all;
}

[[noreturn]] void refuse_option(const std::string& option, const Parameter& parameter, const std::string& fact) {
  throw UsageError({"checkpoint", fmt::format("optimizer, {} of {}", option, parameter.name()), fact, "",
                    "give the optimizers of all ranks the same options"});
}

/// The bits of the options of all parameters, and their complements: so the maxima over ranks are the largest and the
/// smallest bits. Absent where this rank does not optimize the parameter.
std::vector<int64_t> option_bits(const OptimizerState& optimizer, const std::vector<Parameter*>& parameters) {
  const std::vector<std::string>& names = optimizer.option_names();
  const std::vector<std::vector<double>> options = optimizer.options();
  std::vector<int64_t> bits(2 * names.size() * parameters.size(), kAbsent);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (size_t k = 0; k < options[i].size(); ++k) {
      const size_t at = 2 * (i * names.size() + k);
      bits[at] = std::bit_cast<int64_t>(options[i][k] + 0.0);  // -0.0 becomes 0.0
      bits[at + 1] = ~bits[at];
    }
  }
  return bits;
}

/// One way in which the options differ, and the first parameter that has it.
struct Difference {
  std::string fact;
  std::string first;
  int64_t count = 0;
};

void add_difference(std::vector<Difference>& all, const std::string& fact, const std::string& parameter) {
  auto found = std::ranges::find(all, fact, &Difference::fact);
  if (found == all.end()) found = all.insert(all.end(), {fact, parameter});
  ++found->count;
}

std::vector<Difference> differences(const OptimizerRecord& saved_record, const OptimizerRecord& own_record) {
  const ByParameter saved = by_parameter(saved_record), own = by_parameter(own_record);
  const int64_t num_saved = num_groups(saved_record), num_own = num_groups(own_record);
  std::vector<Difference> all;
  for (const auto& [name, options] : own) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      add_difference(all, "the checkpoint has no options", name);
      continue;
    }
    for (const auto& [option, value] : *options) {
      const auto other = found->second->find(option);
      const bool is_known = other != found->second->end();
      if (is_known && (option == kLr || other->second == value)) continue;
      if (option == kGroup) {
        if (!is_known) continue;
        add_difference(
            all,
            fmt::format("group {} of {} in the program was group {} of {}", value, num_own, other->second, num_saved),
            name);
        continue;
      }
      add_difference(all,
                     fmt::format("{} is {} in the program, and {} in the checkpoint", option, value,
                                 is_known ? fmt::format("{}", other->second) : "missing"),
                     name);
    }
  }
  for (const auto& [name, options] : saved) {
    if (!own.contains(name)) add_difference(all, "the optimizer does not have it", name);
  }
  return all;
}

void check_options(const OptimizerRecord& saved, const OptimizerRecord& own) {
  const std::vector<Difference> found = differences(saved, own);
  if (found.empty()) return;
  constexpr size_t kShown = 5;
  std::vector<std::string> facts;
  for (const Difference& difference : found) {
    facts.push_back(fmt::format("{} ({}{})", difference.fact, difference.first,
                                difference.count == 1 ? "" : fmt::format(" and {} more", difference.count - 1)));
  }
  const size_t hidden = facts.size() - std::min(facts.size(), kShown);
  facts.resize(facts.size() - hidden);
  throw DataError({"checkpoint", "optimizer",
                   join(facts, "; ") + (hidden == 0 ? "" : fmt::format("; and {} more differences", hidden)), "",
                   "give the optimizer the options of the checkpoint before load(); it may be set otherwise after it"});
}

/// The saved learning rate of a group by its number; none if the record has no such group, or no groups.
std::optional<double> saved_lr_of(const OptimizerRecord& saved, size_t group) {
  for (const OptimizerRecord::Group& one : saved.groups) {
    const auto number = one.options.find(kGroup);
    if (number != one.options.end() && number->second == static_cast<double>(group)) return one.options.at(kLr);
  }
  return {};
}

/// The saved learning rate of each group; none for one whose parameters no rank has.
std::vector<std::optional<double>> saved_lrs(const OptimizerRecord& saved, const OptimizerState& optimizer,
                                             const std::vector<Parameter*>& parameters) {
  const ByParameter options = by_parameter(saved);
  std::vector<std::optional<double>> lrs;
  for (const std::vector<size_t>& group : optimizer.groups()) {
    std::optional<double> lr;
    if (group.empty()) lr = saved_lr_of(saved, lrs.size());  // other ranks may have all of its parameters
    for (const size_t i : group) {
      const double its = options.at(parameters[i]->whole_name())->at(kLr);
      if (!lr) lr = its;
      if (its == *lr) continue;
      throw DataError({"checkpoint", fmt::format("optimizer, group {}", lrs.size()),
                       fmt::format("was saved with learning rate {} for {} and {} for {}", *lr,
                                   parameters[group.front()]->whole_name(), its, parameters[i]->whole_name()),
                       "", "give the optimizer the groups of the program that saved it"});
    }
    lrs.push_back(lr);
  }
  return lrs;
}

}  // namespace

OptimizerRecord record_of(const OptimizerState& optimizer, const std::vector<Parameter*>& parameters,
                          Communicator& world) {
  const std::vector<std::string>& names = optimizer.option_names();
  std::vector<int64_t> bits = option_bits(optimizer, parameters);
  take_maxima(world, bits, "optimizer options");
  std::map<std::vector<int64_t>, size_t> groups;
  std::map<std::string, size_t> group_of;  // whole tensors, of which tiles have the same options
  OptimizerRecord record{.kind = optimizer.kind()};
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<int64_t> own;
    std::map<std::string, double> options;
    for (size_t k = 0; k < names.size(); ++k) {
      const size_t at = 2 * (i * names.size() + k);
      if (bits[at] == kAbsent) continue;
      const auto largest = std::bit_cast<double>(bits[at]), least = std::bit_cast<double>(~bits[at + 1]);
      if (bits[at] != ~bits[at + 1]) {
        refuse_option(names[k], *parameters[i], fmt::format("is {} on one rank and {} on another", least, largest));
      }
      if (!std::isfinite(largest)) refuse_option(names[k], *parameters[i], fmt::format("is {}", largest));
      own.push_back(bits[at]);
      options[names[k]] = largest;
    }
    if (own.empty()) continue;
    const auto [found, is_new] = groups.emplace(own, groups.size());
    if (is_new) record.groups.push_back({std::move(options), {}});
    const auto [whole, is_first] = group_of.emplace(parameters[i]->whole_name(), found->second);
    if (is_first) record.groups[found->second].parameters.push_back(whole->first);
    if (whole->second != found->second) refuse_option("options", *parameters[i], "tiles of one tensor differ");
  }
  return record;
}

void check_record(const OptimizerRecord& saved, const OptimizerRecord& own, const OptimizerState& optimizer,
                  const std::vector<Parameter*>& parameters) {
  if (saved.kind.empty()) return;
  if (saved.kind != own.kind) {
    throw DataError({"checkpoint", "optimizer",
                     fmt::format("its state is that of {}, but the optimizer is {}", saved.kind, own.kind), "",
                     "use the same optimizer, or none to load the module alone"});
  }
  check_options(saved, own);
  saved_lrs(saved, optimizer, parameters);
}

void restore_record(const OptimizerRecord& saved, OptimizerState& optimizer,
                    const std::vector<Parameter*>& parameters) {
  if (saved.kind.empty()) return;
  const std::vector<std::optional<double>> lrs = saved_lrs(saved, optimizer, parameters);
  for (size_t group = 0; group < lrs.size(); ++group) {
    if (lrs[group]) optimizer.set_lr(group, *lrs[group]);
  }
}

}  // namespace caravan
