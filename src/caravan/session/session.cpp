#include "caravan/session/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/system/cores.h"
#include "caravan/base/system/stop_signal.h"
#include "caravan/comm/calls/same.h"
#include "caravan/comm/store/startup.h"
#include "caravan/comm/tensor.h"
#include "caravan/comm/world.h"
#include "caravan/session/stop_request.h"

namespace caravan {
namespace {

std::string where_of(const RankInfo& info) { return fmt::format("rank {} of {}", info.rank, info.world_size); }

int num_threads(int asked, const RankInfo& info) {
  if (asked < 0) {
    throw UsageError({"session", "threads", fmt::format("{} is not a number of threads", asked), where_of(info),
                      "use 1 or more, or 0 for an equal share of the cores"});
  }
  return asked > 0 ? asked : std::max(1, num_usable_cores() / info.local_world_size);
}

CommOptions comm_options(const SessionOptions& options, const RankInfo& info) {
  constexpr double kLongest = 1e9;
  if (!(options.timeout_s >= 1e-3 && options.timeout_s <= kLongest)) {
    throw UsageError({"session", "timeout_s", fmt::format("{} is not a time-out", options.timeout_s), where_of(info),
                      fmt::format("use seconds, from 0.001 to {}", kLongest)});
  }
  return {.timeout = std::chrono::milliseconds(std::llround(options.timeout_s * 1e3))};
}

std::vector<AxisSize> axes_of(const SessionOptions& options, const RankInfo& info) {
  const std::vector<AxisSize> axes = ordered_axes(options.dp, options.pp, options.ep, options.cp, options.tp);
  for (const auto& [name, size] : axes) {
    const bool is_dp = name == "dp";
    if (size < (is_dp ? 0 : 1)) {
      throw UsageError({"session", name, fmt::format("{} is not a number of ranks", size), where_of(info),
                        is_dp ? "use 1 or more, or 0 for the ranks that are left" : "use 1 or more"});
    }
    if (!options.axes.empty() && size != (is_dp ? 0 : 1)) {
      throw UsageError({"session", name, "is given, and axes too", where_of(info), "give one of them"});
    }
  }
  return options.axes.empty() ? used_axes(axes) : options.axes;
}

/// Before there is a world: ranks of different back-ends would wait for each other until they time out.
void check_same(const SessionOptions& options, const RankInfo& info, const std::shared_ptr<Store>& store,
                const CommOptions& comm) {
  const std::vector<SharedFact> facts{{"axes", to_string(axes_of(options, info))},
                                      {"backend", options.backend},
                                      {"seed", std::to_string(options.seed)},
                                      {"timeout_s", fmt::format("{}", options.timeout_s)}};
  const auto own = next_world_store("session", info, store);
  if (const auto found = find_disagreement(*own, info, facts, startup_timeout(comm))) {
    throw UsageError(
        {"session", found->name, found->to_string(), where_of(info), "give every rank the same SessionOptions"});
  }
}

/// `axes` with the size of the one that takes the rest.
std::vector<AxisSize> whole_axes(std::vector<AxisSize> axes, const RankInfo& info) {
  const auto rest = std::ranges::find(axes, 0, &AxisSize::size);
  if (rest == axes.end()) return axes;
  int64_t others = 1;
  for (const AxisSize& axis : axes) {
    if (&axis == &*rest) continue;
    if (axis.size < 1) {
      throw UsageError({"session", "axes " + to_string(axes),
                        axis.size == 0 ? fmt::format("{} and {} both take the rest", rest->name, axis.name)
                                       : fmt::format("axis {} has size {}", axis.name, axis.size),
                        where_of(info), "give a size to all axes but one"});
    }
    others = std::min<int64_t>(others * axis.size, INT32_MAX);
  }
  if (info.world_size % others != 0) {
    throw UsageError({"session", "axes " + to_string(axes),
                      fmt::format("{} ranks are not a multiple of {}, which leaves no size for {}", info.world_size,
                                  others, rest->name),
                      where_of(info),
                      fmt::format("start {} ranks, or let the other sizes multiply to one of {}",
                                  (info.world_size / others + 1) * others, divisors_near(info.world_size, others))});
  }
  rest->size = static_cast<int>(info.world_size / others);
  return axes;
}

Mesh make_mesh(const SessionOptions& options, const RankInfo& info, const std::shared_ptr<Store>& store) {
  const CommOptions comm = comm_options(options, info);
  check_same(options, info, store, comm);
  std::vector<AxisSize> axes = whole_axes(axes_of(options, info), info);
  return Mesh::create(make_world(options.backend, info, store, comm), std::move(axes));
}

}  // namespace

Session::Session(const SessionOptions& options)
    : info_(RankInfo::from_environment()),
      seed_(options.seed),
      threads_(num_threads(options.threads, info_)),
      runtime_({.intra_op_threads = threads_}),
      store_(open_store(info_, comm_options(options, info_))),
      mesh_(make_mesh(options, info_, store_)) {
  at::manual_seed(seed_);
}

at::Tensor Session::sum(const at::Tensor& value) const {
  const at::Tensor all = value.detach().clone(at::MemoryFormat::Contiguous);
  all_reduce_async(world(), all, all, ReduceOp::sum, "sum").wait();
  return all;
}

double Session::sum(double value) const { return sum(at::full({1}, value, at::kDouble)).item<double>(); }

at::Tensor rows_of(const at::Tensor& batch, const Mesh& mesh) {
  if (!mesh.has("dp")) {
    throw UsageError(
        {"rows_of", "batch", "the mesh has no axis dp", mesh.where(), "cut the batch along an axis of yours"});
  }
  const MeshAxis& dp = mesh["dp"];
  if (batch.dim() == 0 || batch.size(0) < dp.size()) {
    throw UsageError({"rows_of", "batch",
                      fmt::format("a batch of {} rows has none for some of {} ranks",
                                  batch.dim() == 0 ? 0 : batch.size(0), dp.size()),
                      mesh.where(), "use a larger batch, or fewer ranks"});
  }
  return batch.tensor_split(dp.size())[static_cast<size_t>(dp.coord())];
}

bool stop_is_requested() {
  static const StopSignal signal;
  return signal.requested();
}

bool Session::should_stop() const { return sum(stop_is_requested() ? 1.0 : 0.0) > 0; }

}  // namespace caravan
