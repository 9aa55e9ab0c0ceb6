#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "caravan/base/error.h"
#include "caravan/comm/store_handshake.h"

namespace caravan {

/// What every kind of store says of the same mistake. `where` names the store.
CommError key_not_set(std::string_view key, std::chrono::milliseconds timeout, std::string where);
UsageError not_a_counter(std::string_view key, std::string_view holds, int64_t amount, std::string where);

/// A rank that met the store of another job at `address`: what differs, as far as the store's answer is to be believed.
UsageError not_of_the_job(const JobKey& key, int rank, std::string address, const store_protocol::Answer& answer,
                          bool genuine);

}  // namespace caravan
