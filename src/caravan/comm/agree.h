#pragma once

#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan {

/// The text of `root`, on every rank. Every rank calls it. Sends 8 bytes, then the text.
std::string broadcast_text(Communicator& comm, const std::string& text, int root, const Call& call = {});

/// The texts of all ranks, in rank order, on every rank. Sends 8 bytes, then the texts.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& text, const Call& call = {});

}  // namespace caravan
