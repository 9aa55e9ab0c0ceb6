#include "caravan/mesh/mesh.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/mesh/fit.h"

namespace caravan {

struct MeshAxis::State {
  std::string name;
  int size;
  int coord;
  std::shared_ptr<Communicator> comm;
  std::string where;
};

struct Mesh::State {
  std::shared_ptr<Communicator> world;
  std::vector<MeshAxis> axes;
  std::string where;
};

namespace {

std::string sizes_text(const std::vector<AxisSize>& axes) {
  std::vector<std::string> parts;
  for (const AxisSize& axis : axes) parts.push_back(fmt::format("{}={}", axis.name, axis.size));
  return join(parts, " ");
}

void check_axes(const std::vector<AxisSize>& axes) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty()) {
      throw UsageError(
          {"mesh", "", fmt::format("axis {} of {} has no name", i, axes.size()), "", "name it: dp, tp, .."});
    }
    if (axes[i].size < 1) {
      throw UsageError({"mesh", sizes_text(axes), fmt::format("axis {} has size {}", axes[i].name, axes[i].size), "",
                        "give a size of 1 or more; an axis of size 1 changes nothing"});
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[i].name == axes[j].name) {
        throw UsageError({"mesh", sizes_text(axes), "two axes are named " + axes[i].name, "", "name each axis once"});
      }
    }
  }
}

/// Changes to a single axis that make the product right: "make dp 4, or tp 2".
std::string how_to_fill(const std::vector<AxisSize>& axes, int64_t product, int world_size) {
  std::vector<std::string> ways;
  for (const AxisSize& axis : axes) {
    const int64_t others = product / axis.size;
    if (world_size % others == 0) ways.push_back(fmt::format("{} {}", axis.name, world_size / others));
  }
  if (!ways.empty()) return fmt::format("make {}, or start {} ranks", join(ways, ", or "), product);
  return fmt::format("choose each size from the divisors {}, or start {} ranks",
                     divisors_near(world_size, world_size, 16), product);
}

void check_product(const std::vector<AxisSize>& axes, int world_size) {
  int64_t product = 1;
  for (const AxisSize& axis : axes) {
    product *= axis.size;
    if (product > INT32_MAX) break;  // larger than any world; going on could overflow
  }
  if (product == world_size) return;
  throw UsageError({"mesh", sizes_text(axes),
                    fmt::format("the sizes multiply to {}, the world has {} ranks", product, world_size), "",
                    how_to_fill(axes, product, world_size)});
}

/// The coordinate of `rank` on each axis, the last axis fastest.
std::vector<int> coordinates(int rank, const std::vector<AxisSize>& axes) {
  std::vector<int> coords(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    coords[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return coords;
}

}  // namespace

const std::string& MeshAxis::name() const noexcept { return state_->name; }
int MeshAxis::size() const noexcept { return state_->size; }
int MeshAxis::coord() const noexcept { return state_->coord; }
Communicator& MeshAxis::comm() const noexcept { return *state_->comm; }
const std::string& MeshAxis::where() const noexcept { return state_->where; }
bool MeshAxis::operator==(const MeshAxis& other) const noexcept { return state_ == other.state_; }

Mesh Mesh::create(std::shared_ptr<Communicator> world, std::vector<AxisSize> axes) {
  check_axes(axes);
  check_product(axes, world->size());
  const std::vector<int> coords = coordinates(world->rank(), axes);
  std::vector<std::string> at;
  for (size_t i = 0; i < axes.size(); ++i) at.push_back(fmt::format("{}={}", axes[i].name, coords[i]));

  auto state = std::make_shared<State>();
  state->where = fmt::format("rank {} of {} ({})", world->rank(), world->size(), join(at, " "));
  int stride = world->size();
  for (size_t i = 0; i < axes.size(); ++i) {
    stride /= axes[i].size;
    std::vector<int> members(axes[i].size);
    for (int k = 0; k < axes[i].size; ++k) members[k] = world->rank() + (k - coords[i]) * stride;
    MeshAxis axis;
    axis.state_ = std::make_shared<MeshAxis::State>(
        MeshAxis::State{axes[i].name, axes[i].size, coords[i], world->split(members, axes[i].name), state->where});
    state->axes.push_back(std::move(axis));
  }
  state->world = std::move(world);
  Mesh mesh;
  mesh.state_ = std::move(state);
  return mesh;
}

const MeshAxis& Mesh::operator[](std::string_view name) const {
  std::vector<std::string> names;
  for (const MeshAxis& axis : state_->axes) {
    if (axis.name() == name) return axis;
    names.push_back(axis.name());
  }
  throw UsageError({"mesh", std::string(name), "no axis has this name", state_->where,
                    names.empty() ? "this mesh has no axes" : "choose from " + join(names)});
}

bool Mesh::has(std::string_view name) const noexcept {
  return std::any_of(state_->axes.begin(), state_->axes.end(), [&](const auto& axis) { return axis.name() == name; });
}

const std::vector<MeshAxis>& Mesh::axes() const noexcept { return state_->axes; }
Communicator& Mesh::world() const noexcept { return *state_->world; }
int Mesh::rank() const noexcept { return state_->world->rank(); }
int Mesh::size() const noexcept { return state_->world->size(); }
const std::string& Mesh::where() const noexcept { return state_->where; }

int64_t Mesh::bytes_sent() const noexcept {
  int64_t bytes = state_->world->traffic().total_bytes();
  for (const MeshAxis& axis : state_->axes) bytes += axis.comm().traffic().total_bytes();
  return bytes;
}

double Mesh::wait_ms() const noexcept {
  double ms = state_->world->traffic().wait_ms;
  for (const MeshAxis& axis : state_->axes) ms += axis.comm().traffic().wait_ms;
  return ms;
}

}  // namespace caravan
