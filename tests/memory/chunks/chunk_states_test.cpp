#include "caravan/memory/chunks/chunk_states.h"

#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"

namespace caravan::testing::chunk_states_test {
namespace {

using enum ChunkState;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two tensors in each of `chunks` chunks.
ChunkLayout layout_of(int chunks, int ranks = 1) {
  std::vector<ChunkTensor> tensors;
  for (int i = 0; i < 2 * chunks; ++i) tensors.push_back({"w" + std::to_string(i), 5});
  return lay_out_chunks(tensors, 10, ranks);
}

template <typename F>
std::string error_of(const F& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void set_all(ChunkStates& states, std::vector<int> tensors, ChunkState to) {
  for (const int tensor : tensors) states.set(tensor, to);
}

TEST(ChunkStates, AStepOfOneRank) {
  ChunkStates states(layout_of(1));
  EXPECT_EQ(states.chunk(0), ChunkState::release);
  states.claim(0);
  EXPECT_EQ(states.chunk(0), free);
  set_all(states, {0, 1}, hold);
  states.set(0, compute);
  EXPECT_EQ(states.chunk(0), compute);
  EXPECT_FALSE(states.may_evict(0));
  states.set(0, hold_after_forward);
  EXPECT_EQ(states.chunk(0), hold);
  EXPECT_TRUE(states.may_evict(0));
  set_all(states, {1}, compute);
  set_all(states, {1}, hold_after_forward);
  EXPECT_EQ(states.chunk(0), hold_after_forward);
  EXPECT_FALSE(states.may_release(0)) << "its home is here";
  states.begin(ChunkPhase::backward);
  EXPECT_EQ(states.chunk(0), hold);
  set_all(states, {1, 0}, compute);
  set_all(states, {1, 0}, hold_after_backward);
  EXPECT_EQ(states.chunk(0), hold_after_backward);
  EXPECT_TRUE(states.is_reduce_due(0));
  states.begin(ChunkPhase::update);
  set_all(states, {0, 1}, compute);
  set_all(states, {0, 1}, hold);
  states.begin(ChunkPhase::forward);
}

TEST(ChunkStates, OtherRanksChunksAreReleasedWhenTheGroupIsDone) {
  ChunkStates states(layout_of(2, 2), 1);
  for (const int chunk : {0, 1}) states.claim(chunk);
  set_all(states, {0, 1, 2, 3}, hold);
  set_all(states, {0, 1, 2}, compute);
  set_all(states, {0, 1, 2}, hold_after_forward);
  EXPECT_FALSE(states.may_release(0)) << "tensor 3 of its group is still to come";
  EXPECT_THAT(error_of([&] { states.release(0); }), HasSubstr("w0"));
  states.set(3, compute);
  states.set(3, hold_after_forward);
  EXPECT_TRUE(states.may_release(0));
  EXPECT_FALSE(states.may_release(1)) << "at home";
  EXPECT_THAT(error_of([&] { states.release(1); }), AllOf(HasSubstr("w2"), HasSubstr("home")));
  states.release(0);
  EXPECT_EQ(states.chunk(0), ChunkState::release);

  states.begin(ChunkPhase::backward);
  states.claim(0);
  set_all(states, {0, 1}, hold);
  set_all(states, {3, 2, 1}, compute);
  set_all(states, {3, 2, 1}, hold_after_backward);
  EXPECT_FALSE(states.is_reduce_due(0));
  states.set(0, compute);
  states.set(0, hold_after_backward);
  EXPECT_TRUE(states.is_reduce_due(0));
  states.release(0);
  EXPECT_EQ(states.chunk(1), hold_after_backward);
}

TEST(ChunkStates, ErrorsNameTensorChunkAndStates) {
  ChunkStates states(layout_of(2));
  EXPECT_THAT(error_of([&] { states.set(2, hold); }), AllOf(HasSubstr("w2"), HasSubstr("no memory")));
  states.claim(1);
  EXPECT_THAT(error_of([&] { states.claim(1); }), HasSubstr("has memory"));
  EXPECT_THAT(error_of([&] { states.set(2, compute); }),
              AllOf(HasSubstr("w2"), HasSubstr("from free to compute"), HasSubstr("chunk 1 (free), forward")));
  states.set(2, hold);
  states.set(2, compute);
  EXPECT_THAT(error_of([&] { states.begin(ChunkPhase::backward); }), HasSubstr("w2"));
  EXPECT_THAT(error_of([&] { states.release(1); }), HasSubstr("w2"));
  EXPECT_THAT(error_of([&] { states.begin(ChunkPhase::update); }), HasSubstr("begin the backward"));
  EXPECT_THROW(ChunkStates(layout_of(2, 2), 2), UsageError);
}

TEST(ChunkStates, AParameterIsGoneAfterItsGradient) {
  ChunkStates states(layout_of(1));
  states.claim(0);
  states.begin(ChunkPhase::backward);
  states.set(0, hold);
  states.set(0, compute);
  states.set(0, hold_after_backward);
  EXPECT_THAT(error_of([&] { states.set(0, compute); }), AllOf(HasSubstr("w0"), HasSubstr("keep a tensor")));
  states.begin(ChunkPhase::update);
  EXPECT_THAT(error_of([&] { states.begin(ChunkPhase::forward); }), HasSubstr("the update has not written it"));
}

// The rules again, as sentences about a tensor's contents rather than a table: none, a parameter or a gradient.
bool is_allowed(ChunkState from, ChunkState to, ChunkPhase phase) {
  const bool in_forward = phase == ChunkPhase::forward;
  const bool in_update = phase == ChunkPhase::update;
  if (from == to || to == ChunkState::release) return false;
  switch (to) {
    case free: return from == compute ? in_update : from != hold_after_backward || phase == ChunkPhase::backward;
    case compute:
      if (from == free) return !in_forward;
      return from == hold || (from == hold_after_forward && in_forward) || (from == hold_after_backward && in_update);
    case hold: return from == free || (from == compute && !in_forward) || (from == hold_after_backward && in_update);
    case hold_after_forward: return from == compute && in_forward;
    default: return from == compute && phase == ChunkPhase::backward;
  }
}

ChunkState expected_chunk(const std::vector<ChunkState>& tensors, bool has_memory) {
  if (!has_memory) return ChunkState::release;
  std::set<ChunkState> present(tensors.begin(), tensors.end());
  if (present.contains(compute)) return compute;
  present.erase(free);
  if (present.empty()) return free;
  return present.size() == 1 ? *present.begin() : hold;
}

RC_GTEST_PROP(ChunkStates, RandomSequencesKeepTheInvariants, ()) {
  const int ranks = *rc::gen::inRange(1, 4);
  const int rank = *rc::gen::inRange(0, ranks);
  const ChunkLayout layout = layout_of(ranks * 2, ranks);
  ChunkStates states(layout, rank);
  std::vector<ChunkState> tensors(layout.tensors.size(), free);
  std::vector<bool> has_memory(static_cast<size_t>(layout.num_chunks), false);
  ChunkPhase phase = ChunkPhase::forward;
  const auto of_chunk = [&](int c) { return std::vector<ChunkState>{tensors[2 * c], tensors[2 * c + 1]}; };
  for (int i = 0; i < 150; ++i) {
    const int what = *rc::gen::inRange(0, 12);
    if (what == 0) {
      const auto next = static_cast<ChunkPhase>((static_cast<int>(phase) + 1) % 3);
      const bool computes = std::ranges::count(tensors, compute) > 0;
      const bool has_gradient = next == ChunkPhase::forward && std::ranges::count(tensors, hold_after_backward) > 0;
      if (computes || has_gradient) {
        RC_ASSERT_THROWS_AS(states.begin(next), UsageError);
      } else {
        states.begin(next);
        phase = next;
        if (phase == ChunkPhase::backward) std::ranges::replace(tensors, hold_after_forward, hold);
      }
    } else if (what < 3) {
      const int chunk = *rc::gen::inRange(0, layout.num_chunks);
      if (!has_memory[chunk]) {
        states.claim(chunk);
        has_memory[chunk] = true;
      } else if (states.may_release(chunk)) {
        // Nothing is lost: no contents, or the home of the chunk is elsewhere and no tensor is in the middle of a pass.
        for (const ChunkState state : of_chunk(chunk))
          RC_ASSERT(state == free || (chunk % ranks != rank && state != compute && state != hold));
        states.release(chunk);
        has_memory[chunk] = false;
        tensors[2 * chunk] = tensors[2 * chunk + 1] = free;
      } else {
        RC_ASSERT_THROWS_AS(states.release(chunk), UsageError);
      }
    } else {
      const int tensor = *rc::gen::inRange<int>(0, static_cast<int>(tensors.size()));
      const auto to = static_cast<ChunkState>(*rc::gen::inRange(0, static_cast<int>(kNumChunkStates)));
      if (has_memory[tensor / 2] && is_allowed(tensors[tensor], to, phase)) {
        states.set(tensor, to);
        tensors[tensor] = to;
      } else {
        RC_ASSERT_THROWS_AS(states.set(tensor, to), UsageError);
      }
    }
    for (int t = 0; t < static_cast<int>(tensors.size()); ++t) RC_ASSERT(states.tensor(t) == tensors[t]);
    for (int c = 0; c < layout.num_chunks; ++c) {
      RC_ASSERT(states.chunk(c) == expected_chunk(of_chunk(c), has_memory[c]));
      RC_ASSERT(states.may_evict(c) == (has_memory[c] && std::ranges::count(of_chunk(c), compute) == 0));
    }
  }
}

}  // namespace
}  // namespace caravan::testing::chunk_states_test
