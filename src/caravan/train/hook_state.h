#pragma once

#include <string>
#include <vector>

#include "caravan/checkpoint/checkpoint.h"
#include "caravan/engine/engine.h"

namespace caravan {

/// What the communication hook of an engine hands on from step to step, in checkpoints (kHookTensors). Summands are
/// kept for each coordinate of the hook's axis; on another number of ranks their sum goes to coordinate 0. What is
/// shared begins anew where it does not fit.

/// Pieces to save; none without a hook.
std::vector<CheckpointPiece> hook_pieces(Engine& engine);
/// Reads what the hook of this engine has a use for.
void read_hook(Engine& engine, CheckpointReader& reader);
/// What it takes in memory on this rank.
double hook_bytes(Engine& engine);

}  // namespace caravan
