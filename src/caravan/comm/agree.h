#pragma once

#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Returns the text of `root` on every rank. Every rank calls it. Sends 8 bytes, then the text.
std::string broadcast_text(Communicator& comm, const std::string& text, int root, const Call& call = {});

/// Returns the texts of all ranks, in rank order, on every rank. Every rank calls it. Sends 8 bytes, then the texts.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& text, const Call& call = {});

}  // namespace caravan
