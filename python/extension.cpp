#include <chrono>
#include <memory>
#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "caravan/comm/backends/shared/shm.h"
#include "caravan/comm/c10d/backend.h"
#include "caravan/comm/store/c10d_store.h"

namespace {

using std::chrono::milliseconds;

/// The world of one process group: its ranks meet in the store of the group.
std::shared_ptr<caravan::Communicator> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               milliseconds timeout) {
  caravan::RankInfo info;
  info.rank = info.local_rank = rank;
  info.world_size = info.local_world_size = size;
  return caravan::make_shm_world(info, caravan::wrap_c10d_store(store, "store of the process group"),
                                 {.timeout = timeout});
}

/// What torch.distributed calls for every process group, on its members.
c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         milliseconds timeout, std::shared_ptr<caravan::C10dProgress> progress) {
  return caravan::make_c10d_backend(
      connect(store, rank, size, timeout),
      {.name = "caravan", .timeout = timeout, .progress = std::move(progress), .connect = connect});
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  const auto progress = std::make_shared<caravan::C10dProgress>();
  module.def(
      "create",
      [progress](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const milliseconds& timeout) {
        return create(store, rank, size, timeout, progress);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "stop", [progress] { progress->stop(); }, py::call_guard<py::gil_scoped_release>());
}
