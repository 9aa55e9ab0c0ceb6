#pragma once

#include <chrono>
#include <string_view>

#include "caravan/comm/rendezvous.h"

namespace caravan::messages {

/// The keys of a world that this rank is about to enter: the n-th of `backend` of this rank is the n-th of every rank.
std::shared_ptr<Store> next_world(std::string_view backend, const RankInfo& info, const std::shared_ptr<Store>& store);

/// Waits until every rank has come to the world whose keys are `store`'s. Throws CommError naming those that do not
/// within `timeout`.
void meet(std::string_view backend, const RankInfo& info, Store& store, std::chrono::milliseconds timeout);

}  // namespace caravan::messages
