#include "caravan/mesh/mesh.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/mesh/mesh_state.h"

namespace caravan {

const std::string& MeshAxis::name() const noexcept { return state_->name; }
int MeshAxis::size() const noexcept { return state_->size; }
int MeshAxis::coord() const noexcept { return state_->coord; }
Communicator& MeshAxis::comm() const noexcept { return *state_->comm; }
const std::string& MeshAxis::where() const noexcept { return state_->where; }
const std::string& MeshAxis::parent() const noexcept { return state_->parent; }
DeferredWork& MeshAxis::deferred() const noexcept { return *state_->deferred; }
bool MeshAxis::operator==(const MeshAxis& other) const noexcept { return state_ == other.state_; }

int MeshAxis::parent_coord(int coord) const {
  if (coord < 0 || coord >= size()) {
    throw UsageError({"mesh", name(), fmt::format("has no coordinate {}", coord), where(),
                      fmt::format("choose a coordinate from 0 to {}", size() - 1)});
  }
  return parent().empty() ? coord : state_->parent_coords[static_cast<size_t>(coord)];
}

std::vector<AxisSize> ordered_axes(int dp, int pp, int ep, int cp, int tp) {
  return {{"pp", pp}, {"dp", dp}, {"ep", ep}, {"cp", cp}, {"tp", tp}};
}

std::vector<AxisSize> used_axes(std::vector<AxisSize> axes) {
  std::erase_if(axes, [](const AxisSize& axis) { return axis.size == 1 && axis.name != "dp"; });
  return axes;
}

std::string to_string(const std::vector<AxisSize>& axes) {
  if (axes.empty()) return "none";
  std::vector<std::string> parts;
  for (const AxisSize& axis : axes) parts.push_back(fmt::format("{}={}", axis.name, axis.size));
  return join(parts, " ");
}

void check_axes(const std::vector<AxisSize>& axes, const std::string& subject, const std::string& where) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty()) {
      throw UsageError(
          {"mesh", subject, fmt::format("axis {} of {} has no name", i, axes.size()), where, "name it: dp, tp, .."});
    }
    if (axes[i].size < 1) {
      throw UsageError({"mesh", subject, fmt::format("axis {} has size {}", axes[i].name, axes[i].size), where,
                        "give a size of 1 or more; an axis of size 1 changes nothing"});
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[i].name == axes[j].name) {
        throw UsageError({"mesh", subject, "two axes are named " + axes[i].name, where, "name each axis once"});
      }
    }
  }
}

int64_t product_of(const std::vector<AxisSize>& axes) {
  int64_t product = 1;
  for (const AxisSize& axis : axes) {
    product *= axis.size;
    if (product > INT32_MAX) break;  // larger than any world; the product could overflow
  }
  return product;
}

std::string how_to_fill(const std::vector<AxisSize>& axes, int64_t product, int wanted) {
  std::vector<std::string> ways;
  for (const AxisSize& axis : axes) {
    const int64_t others = product / axis.size;
    if (others > 0 && wanted % others == 0) ways.push_back(fmt::format("{} {}", axis.name, wanted / others));
  }
  if (!ways.empty()) return "make " + join(ways, ", or ");
  return "choose each size from the divisors " + divisors_near(wanted, wanted, 16);
}

void Mesh::State::set_sizes(std::vector<AxisSize> axes) {
  sizes = std::move(axes);
  int rank = family->world->rank();
  std::vector<AxisSize> coords = sizes;
  for (size_t i = sizes.size(); i-- > 0; rank /= sizes[i].size) coords[i].size = rank % sizes[i].size;
  where = fmt::format("rank {} of {} ({})", family->world->rank(), family->world->size(), to_string(coords));
}

const Mesh::State::Known* Mesh::State::find(std::string_view name) const noexcept {
  const auto found = std::find_if(known.begin(), known.end(), [&](const Known& axis) { return axis.name == name; });
  return found == known.end() ? nullptr : &*found;
}

const Mesh::State::Known& Mesh::State::at(std::string_view name) const {
  if (const Known* found = find(name)) return *found;
  const std::vector<std::string> all = names();
  throw UsageError({"mesh", std::string(name), "no axis has this name", where,
                    all.empty() ? "this mesh has no axes" : "choose from " + caravan::join(all)});
}

std::vector<std::string> Mesh::State::names() const {
  std::vector<std::string> names;
  for (const Known& axis : known) names.push_back(axis.name);
  return names;
}

std::vector<int> Mesh::State::ranks_along(const std::vector<std::string>& axes) const {
  int origin = family->world->rank();  // becomes the one with coordinate 0 on all of `axes`
  std::vector<int> steps(1, 0);
  for (const std::string& name : axes) {
    int stride = family->world->size();
    const auto axis = std::find_if(sizes.begin(), sizes.end(), [&](const AxisSize& candidate) {
      stride /= candidate.size;
      return candidate.name == name;
    });
    origin -= family->world->rank() / stride % axis->size * stride;
    std::vector<int> further;
    for (const int step : steps) {
      for (int coord = 0; coord < axis->size; ++coord) further.push_back(step + coord * stride);
    }
    steps = std::move(further);
  }
  for (int& step : steps) step += origin;
  return steps;
}

MeshAxis Mesh::State::split_off(std::string name, const std::vector<int>& members, std::string parent,
                                std::vector<int> parent_coords) const {
  const auto here = std::find(members.begin(), members.end(), family->world->rank());
  std::shared_ptr<Communicator> comm = family->world->split(members, name);
  family->axis_comms.push_back(comm);
  MeshAxis axis;
  axis.state_ = std::make_shared<MeshAxis::State>(MeshAxis::State{.name = std::move(name),
                                                                  .size = static_cast<int>(members.size()),
                                                                  .coord = static_cast<int>(here - members.begin()),
                                                                  .comm = std::move(comm),
                                                                  .where = where,
                                                                  .deferred = family->deferred,
                                                                  .parent = std::move(parent),
                                                                  .parent_coords = std::move(parent_coords)});
  return axis;
}

Mesh Mesh::create(std::shared_ptr<Communicator> world, std::vector<AxisSize> axes) {
  check_axes(axes, to_string(axes), "");
  const int64_t product = product_of(axes);
  if (product != world->size()) {
    throw UsageError({"mesh", to_string(axes),
                      fmt::format("the sizes multiply to {}, the world has {} ranks", product, world->size()), "",
                      fmt::format("{}, or start {} ranks", how_to_fill(axes, product, world->size()), product)});
  }
  auto state = std::make_shared<State>();
  state->family = std::make_shared<Family>(Family{.world = std::move(world)});
  state->set_sizes(std::move(axes));
  for (const auto& [name, size] : state->sizes) {
    state->listed.push_back(state->split_off(name, state->ranks_along({name})));
    state->known.push_back({name, {name}, state->listed.back()});
  }
  Mesh mesh;
  mesh.state_ = std::move(state);
  return mesh;
}

const MeshAxis& Mesh::operator[](std::string_view name) const {
  const State::Known& known = state_->at(name);
  if (known.axis) return *known.axis;
  throw UsageError({"mesh", known.name,
                    fmt::format("this rank is not on the sub-axis: its coordinate on {} is {}", known.parent,
                                (*this)[known.parent].coord()),
                    state_->where, "ask Mesh::has first"});
}

bool Mesh::has(std::string_view name) const noexcept {
  const State::Known* known = state_->find(name);
  return known != nullptr && known->axis.has_value();
}

const std::vector<MeshAxis>& Mesh::axes() const noexcept { return state_->listed; }
const std::vector<std::string>& Mesh::made_of(std::string_view name) const { return state_->at(name).made_of; }
const MeshAxis* Mesh::joined(const std::vector<std::string>& axes) const noexcept {
  for (const State::Known& known : state_->known) {
    if (known.made_of == axes && known.parent.empty()) return &*known.axis;
  }
  return nullptr;
}

std::vector<std::string> Mesh::names() const { return state_->names(); }
Communicator& Mesh::world() const noexcept { return *state_->family->world; }
int Mesh::rank() const noexcept { return world().rank(); }
int Mesh::size() const noexcept { return world().size(); }
const std::string& Mesh::where() const noexcept { return state_->where; }
DeferredWork& Mesh::deferred() const noexcept { return *state_->family->deferred; }

int64_t Mesh::bytes_sent() const noexcept {
  int64_t bytes = world().traffic().total_bytes();
  for (const auto& comm : state_->family->axis_comms) bytes += comm->traffic().total_bytes();
  return bytes;
}

double Mesh::wait_ms() const noexcept {
  double ms = world().traffic().wait_ms;
  for (const auto& comm : state_->family->axis_comms) ms += comm->traffic().wait_ms;
  return ms;
}

}  // namespace caravan
