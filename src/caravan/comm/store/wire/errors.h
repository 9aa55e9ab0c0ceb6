#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "caravan/base/error.h"
#include "caravan/comm/store/secret/handshake.h"

namespace caravan {

/// Errors that all stores have in common. `where` names the store.
CommError key_not_set(std::string_view key, std::chrono::milliseconds timeout, std::string where);
UsageError not_a_counter(std::string_view key, std::string_view holds, int64_t amount, std::string where);

/// A rank that the store at `address` rejected, or that rejects the store. Says what differs as far as the answer is
/// genuine.
UsageError rejected_handshake(const JobKey& key, int rank, std::string address, const store_protocol::Answer& answer,
                              bool genuine);

}  // namespace caravan
