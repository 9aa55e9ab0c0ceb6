#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "caravan/comm/store.h"

namespace caravan {

/// A store of c10d (torchrun's, or the one a process group was made with) as ours. `where` names it in errors.
std::shared_ptr<Store> wrap_c10d_store(c10::intrusive_ptr<c10d::Store> store, std::string where);

/// Our store as c10d's, for the process groups that meet in it.
c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store, std::chrono::milliseconds timeout);

}  // namespace caravan
