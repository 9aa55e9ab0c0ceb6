#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "caravan/comm/store/store.h"

namespace caravan {

/// Adapts a store of c10d, such as torchrun's or that of a process group, to ours. `where` names it in errors.
std::shared_ptr<Store> wrap_c10d_store(c10::intrusive_ptr<c10d::Store> store, std::string where);

/// Adapts our store to c10d's, for process groups.
c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store, std::chrono::milliseconds timeout);

}  // namespace caravan
