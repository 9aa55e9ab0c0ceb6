#include "caravan/memory/chunks/chunk_states.h"

#include <algorithm>
#include <array>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using enum ChunkState;

constexpr std::array<std::string_view, kNumChunkStates> kChunkStateNames = {
    "free", "compute", "hold", "hold after forward", "hold after backward", "release"};
constexpr std::array<std::string_view, 3> kChunkPhaseNames = {"forward", "backward", "update"};

constexpr std::array<ChunkTransition, 13> kChunkTransitions = {{
    // Values arrive: the initial ones, or from the rank where the chunk is at home.
    {.from = free, .to = hold, .in_forward = true, .in_backward = true, .in_update = true},
    {.from = hold, .to = free, .in_forward = true, .in_backward = true, .in_update = true},
    {.from = hold, .to = compute, .in_forward = true, .in_backward = true, .in_update = true},
    {.from = compute, .to = hold_after_forward, .in_forward = true},
    // A unit that runs again in the same forward.
    {.from = hold_after_forward, .to = compute, .in_forward = true},
    {.from = hold_after_forward, .to = free, .in_forward = true},
    // A recomputed forward has not had its backward yet; an update has written the parameter.
    {.from = compute, .to = hold, .in_backward = true, .in_update = true},
    {.from = compute, .to = hold_after_backward, .in_backward = true},
    // Gradients of other ranks' chunks, after the reduce-scatter.
    {.from = hold_after_backward, .to = free, .in_backward = true},
    {.from = hold_after_backward, .to = compute, .in_update = true},
    // The parameter is written from its fp32 copy, where no device computes.
    {.from = hold_after_backward, .to = hold, .in_update = true},
    // What a pass takes without contents it writes wholly: the first gradient of a chunk of its own.
    {.from = free, .to = compute, .in_backward = true, .in_update = true},
    {.from = compute, .to = free, .in_update = true},
}};

}  // namespace

std::string_view name(ChunkState state) noexcept { return kChunkStateNames[static_cast<size_t>(state)]; }
std::string_view name(ChunkPhase phase) noexcept { return kChunkPhaseNames[static_cast<size_t>(phase)]; }

bool ChunkTransition::is_in(ChunkPhase phase) const noexcept {
  return phase == ChunkPhase::forward ? in_forward : phase == ChunkPhase::backward ? in_backward : in_update;
}

std::span<const ChunkTransition> chunk_transitions() noexcept { return kChunkTransitions; }

ChunkStates::ChunkStates(ChunkLayout layout, int rank)
    : layout_(std::move(layout)),
      rank_(rank),
      tensors_(layout_.tensors.size(), free),
      has_memory_(static_cast<size_t>(layout_.num_chunks), false),
      tensors_of_(layout_.tensors_of_chunks()) {
  if (rank >= 0 && rank < layout_.num_ranks) return;
  throw UsageError({.op = "chunks",
                    .subject = "rank " + std::to_string(rank),
                    .fact = "the chunks are laid out for " + std::to_string(layout_.num_ranks) + " ranks",
                    .where = {},
                    .action = "lay out the chunks for the ranks that share them"});
}

ChunkState ChunkStates::chunk(int index) const {
  if (!has_memory_.at(static_cast<size_t>(index))) return ChunkState::release;
  const std::vector<int>& own = tensors_of_[static_cast<size_t>(index)];
  if (std::ranges::any_of(own, [&](int t) { return tensor(t) == compute; })) return compute;
  ChunkState common = free;
  for (const int t : own) {
    if (tensor(t) == free || tensor(t) == common) continue;
    common = common == free ? tensor(t) : hold;
  }
  return common;
}

void ChunkStates::set(int index, ChunkState to) {
  const ChunkState from = tensor(index);
  const int chunk = layout_.slots[static_cast<size_t>(index)].chunk;
  if (!has_memory_[static_cast<size_t>(chunk)]) refuse(index, to, "the chunk has no memory");
  const bool is_legal = std::ranges::any_of(
      kChunkTransitions, [&](const ChunkTransition& t) { return t.from == from && t.to == to && t.is_in(phase_); });
  if (!is_legal && from == hold_after_backward && to == compute)
    refuse(index, to, "its gradient has replaced its parameter: keep a tensor that is used again out of the chunks");
  if (!is_legal) refuse(index, to, "there is no such change");
  tensors_[static_cast<size_t>(index)] = to;
}

void ChunkStates::begin(ChunkPhase phase) {
  const auto next = static_cast<ChunkPhase>((static_cast<int>(phase_) + 1) % 3);
  if (phase != next)
    throw UsageError({.op = "chunks",
                      .subject = std::string(name(phase)),
                      .fact = "follows " + std::string(name(phase_)),
                      .where = {},
                      .action = "begin the " + std::string(name(next))});
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (tensors_[i] == compute) refuse(index, hold, "it still computes when the next phase begins");
    if (phase == ChunkPhase::forward && tensors_[i] == hold_after_backward)
      refuse(index, hold, "the update has not written it");
  }
  if (phase == ChunkPhase::backward) std::ranges::replace(tensors_, hold_after_forward, hold);
  phase_ = phase;
}

void ChunkStates::claim(int chunk) {
  if (has_memory_.at(static_cast<size_t>(chunk)))
    throw UsageError({.op = "chunks",
                      .subject = "chunk " + std::to_string(chunk),
                      .fact = "has memory already; it is in state " + std::string(name(this->chunk(chunk))),
                      .where = "rank " + std::to_string(rank_),
                      .action = "claim a chunk that is released"});
  has_memory_[static_cast<size_t>(chunk)] = true;
}

void ChunkStates::release(int chunk) {
  if (const int tensor = blocking_tensor(chunk); tensor >= 0)
    refuse(tensor, ChunkState::release, is_at_home(chunk) ? "this rank is its home" : "it is still needed");
  for (const int tensor : tensors_of_.at(static_cast<size_t>(chunk))) tensors_[static_cast<size_t>(tensor)] = free;
  has_memory_[static_cast<size_t>(chunk)] = false;
}

bool ChunkStates::may_evict(int index) const {
  const ChunkState state = chunk(index);
  return state != ChunkState::release && state != compute;
}

bool ChunkStates::may_release(int chunk) const {
  return has_memory_.at(static_cast<size_t>(chunk)) && blocking_tensor(chunk) < 0;
}

// A tensor for which the chunk must stay, -1: none.
int ChunkStates::blocking_tensor(int chunk) const {
  const std::vector<int>& own = tensors_of_.at(static_cast<size_t>(chunk));
  const auto occupied = std::ranges::find_if(own, [&](int t) { return tensor(t) != free; });
  if (occupied == own.end()) return -1;
  const ChunkState done = phase_ == ChunkPhase::forward ? hold_after_forward : hold_after_backward;
  const bool is_done = !is_at_home(chunk) && phase_ != ChunkPhase::update && all_hold(layout_.group(chunk), done);
  return is_done ? -1 : *occupied;
}

bool ChunkStates::all_hold(int group, ChunkState state) const {
  bool has_any = false;
  for (int chunk = group * layout_.num_ranks; chunk < (group + 1) * layout_.num_ranks; ++chunk) {
    if (!has_memory_.at(static_cast<size_t>(chunk))) continue;
    for (const int t : tensors_of_[static_cast<size_t>(chunk)])
      if (tensor(t) != state) return false;
    has_any = has_any || !tensors_of_[static_cast<size_t>(chunk)].empty();
  }
  return has_any;
}

bool ChunkStates::is_reduce_due(int group) const {
  return phase_ == ChunkPhase::backward && all_hold(group, hold_after_backward);
}

void ChunkStates::refuse(int index, ChunkState to, std::string_view fact) const {
  const int chunk = layout_.slots[static_cast<size_t>(index)].chunk;
  throw UsageError({.op = "chunks",
                    .subject = layout_.tensors[static_cast<size_t>(index)].name,
                    .fact = "cannot go from " + std::string(name(tensor(index))) + " to " + std::string(name(to)) +
                            ": " + std::string(fact),
                    .where = "chunk " + std::to_string(chunk) + " (" + std::string(name(this->chunk(chunk))) + "), " +
                             std::string(name(phase_)) + ", rank " + std::to_string(rank_),
                    .action = {}});
}

}  // namespace caravan
