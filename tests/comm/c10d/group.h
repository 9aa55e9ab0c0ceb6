#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "caravan/comm/c10d/backend.h"

namespace caravan::testing {

/// A process group with our back-end.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::shared_ptr<Communicator>& communicator,
                                                         C10dOptions options = {}) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(communicator->rank(), communicator->size());
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    make_c10d_backend(communicator, std::move(options)));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return group;
}

}  // namespace caravan::testing
