// Meshes with further axes of the same ranks: factor, join, part.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/mesh/mesh_state.h"

namespace caravan {
namespace {

std::string sub_axis_name(std::string_view axis, const std::vector<int>& coords) {
  return fmt::format("{}{{{}}}", axis, join(std::vector<int64_t>(coords.begin(), coords.end()), ","));
}

void check_new_name(const std::string& name, const std::vector<std::string>& taken, const std::string& where) {
  if (name.empty()) throw UsageError({"mesh", "", "the axis has no name", where, "name it: dp, tp, .."});
  if (std::find(taken.begin(), taken.end(), name) == taken.end()) return;
  throw UsageError({"mesh", name, "the mesh has an axis of this name", where, "choose another name"});
}

void check_coords(const std::string& subject, const std::vector<int>& coords, const MeshAxis& axis) {
  if (coords.empty()) {
    throw UsageError({"mesh", subject, "no coordinates are given", axis.where(),
                      fmt::format("give at least one from 0 to {}", axis.size() - 1)});
  }
  for (size_t i = 0; i < coords.size(); ++i) {
    if (coords[i] < 0 || coords[i] >= axis.size()) {
      throw UsageError({"mesh", subject, fmt::format("axis {} has no coordinate {}", axis.name(), coords[i]),
                        axis.where(), fmt::format("choose from 0 to {}", axis.size() - 1)});
    }
    if (i > 0 && coords[i] <= coords[i - 1]) {
      throw UsageError({"mesh", subject, fmt::format("coordinate {} comes after {}", coords[i], coords[i - 1]),
                        axis.where(), "give each coordinate once, in increasing order"});
    }
  }
}

/// Throws if two of these axes are made of the same listed axis.
void check_disjoint(const Mesh& mesh, const std::string& name, const std::vector<std::string>& axes) {
  std::map<std::string, std::string> owner;
  for (const std::string& axis : axes) {
    for (const std::string& listed : mesh.made_of(axis)) {
      const auto [other, is_new] = owner.emplace(listed, axis);
      if (is_new) continue;
      throw UsageError({"mesh", name,
                        other->second == axis ? fmt::format("axis {} is named twice", axis)
                                              : fmt::format("axes {} and {} share coordinates", other->second, axis),
                        mesh.where(), "join axes that are independent of each other"});
    }
  }
}

}  // namespace

Mesh Mesh::factor(std::string_view axis, std::vector<AxisSize> parts) const {
  const std::vector<AxisSize>& before = state_->sizes;
  const State::Known& whole = state_->at(axis);
  const auto place = std::find_if(before.begin(), before.end(), [&](const AxisSize& one) { return one.name == axis; });
  const std::string subject = fmt::format("{} into {}", axis, to_string(parts));
  if (place == before.end()) {
    throw UsageError({"mesh", subject, fmt::format("axis {} is made of {}", axis, caravan::join(whole.made_of)),
                      where(), "factor one of those that Mesh::axes lists: " + to_string(before)});
  }
  if (parts.empty()) throw UsageError({"mesh", subject, "there are no parts", where(), "give at least one part"});
  check_axes(parts, subject, where());
  for (const AxisSize& part : parts) check_new_name(part.name, state_->names(), where());
  const int64_t product = product_of(parts);
  if (product != place->size) {
    throw UsageError({"mesh", subject,
                      fmt::format("the sizes multiply to {}, axis {} has size {}", product, axis, place->size), where(),
                      how_to_fill(parts, product, place->size)});
  }

  auto state = std::make_shared<State>(*state_);
  const auto index = place - before.begin();
  std::vector<AxisSize> after = before;
  after.insert(after.erase(after.begin() + index), parts.begin(), parts.end());
  state->set_sizes(std::move(after));

  // What was made of the axis is now made of its parts: the axis itself, joined axes, sub-axes.
  for (State::Known& known : state->known) {
    const auto old = std::find(known.made_of.begin(), known.made_of.end(), axis);
    if (old == known.made_of.end()) continue;
    auto next = known.made_of.erase(old);
    for (const AxisSize& part : parts) next = known.made_of.insert(next, part.name) + 1;
  }
  auto next = state->listed.erase(state->listed.begin() + index);
  for (const AxisSize& part : parts) {
    const MeshAxis made = state->split_off(part.name, state->ranks_along({part.name}));
    state->known.push_back({part.name, {part.name}, made});
    next = state->listed.insert(next, made) + 1;
  }
  Mesh mesh;
  mesh.state_ = std::move(state);
  return mesh;
}

Mesh Mesh::join(std::string_view name, std::vector<std::string> axes) const {
  const std::string new_name(name);
  check_new_name(new_name, state_->names(), where());
  if (axes.empty()) {
    throw UsageError(
        {"mesh", new_name, "is made of no axes", where(), "choose from " + caravan::join(state_->names())});
  }
  for (const std::string& axis : axes) {
    const State::Known& known = state_->at(axis);
    if (known.parent.empty()) continue;
    throw UsageError({"mesh", new_name, fmt::format("{} has only some ranks of axis {}", axis, known.parent), where(),
                      "join whole axes"});
  }
  check_disjoint(*this, new_name, axes);

  auto state = std::make_shared<State>(*state_);
  std::vector<std::string> made_of;
  for (const std::string& axis : axes) {
    const std::vector<std::string>& listed = state_->at(axis).made_of;
    made_of.insert(made_of.end(), listed.begin(), listed.end());
  }
  const MeshAxis made = state->split_off(new_name, state->ranks_along(made_of));
  state->known.push_back({new_name, std::move(made_of), made});
  Mesh mesh;
  mesh.state_ = std::move(state);
  return mesh;
}

Mesh Mesh::part(std::string_view axis, std::vector<int> coords) const {
  const State::Known& whole = state_->at(axis);
  const std::string name = sub_axis_name(axis, coords);
  if (!whole.parent.empty()) {
    throw UsageError({"mesh", name, fmt::format("{} is a sub-axis of {} itself", axis, whole.parent), where(),
                      "give coordinates of " + whole.parent});
  }
  check_coords(name, coords, *whole.axis);
  const State::Known* same = state_->find(name);
  if (same != nullptr && same->parent == axis) return *this;
  check_new_name(name, state_->names(), where());

  auto state = std::make_shared<State>(*state_);
  State::Known made{.name = name, .made_of = whole.made_of, .axis = std::nullopt, .parent = whole.name};
  if (std::find(coords.begin(), coords.end(), whole.axis->coord()) != coords.end()) {
    const std::vector<int> ranks = state->ranks_along(whole.made_of);
    std::vector<int> members;
    for (const int coord : coords) members.push_back(ranks[static_cast<size_t>(coord)]);
    made.axis = state->split_off(name, members, whole.name, std::move(coords));
  } else {
    const int self = rank();
    world().split({&self, 1}, name);  // a separate part, since every rank takes part in a split
  }
  state->known.push_back(std::move(made));
  Mesh mesh;
  mesh.state_ = std::move(state);
  return mesh;
}

}  // namespace caravan
