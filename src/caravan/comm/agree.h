#pragma once

#include <span>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Returns the text of `root` on every rank. Every rank calls it. Sends 8 bytes, then the text.
std::string broadcast_text(Communicator& comm, const std::string& text, int root, const Call& call = {});

/// Returns the texts of all ranks, in rank order, on every rank. Every rank calls it. Sends 8 bytes, then the texts.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& text, const Call& call = {});

/// Each value becomes the largest that any rank has. Every rank calls it with as many. Sends one all-reduce of them.
void take_maxima(Communicator& comm, std::span<int64_t> values, const Call& call = {});

}  // namespace caravan
