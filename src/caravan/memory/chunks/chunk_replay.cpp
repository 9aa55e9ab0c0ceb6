#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/memory/chunks/chunk_moves.h"

namespace caravan {
namespace {

// Where the contents of chunks are while a plan is performed.
class ChunkReplay {
 public:
  explicit ChunkReplay(const ChunkTrace& trace) : trace_(trace), chunks_(trace.chunk_bytes.size()) {}

  void perform(const ChunkMove& move) {
    moment_ = move.moment;
    Chunk& chunk = chunks_.at(static_cast<size_t>(move.chunk));
    const int64_t bytes = trace_.chunk_bytes[static_cast<size_t>(move.chunk)];
    switch (move.kind) {
      case ChunkMove::Kind::fetch:
      case ChunkMove::Kind::claim:
        require(!chunk.has_device, move.chunk, "is on the device already");
        chunk.has_device = true;
        on_device_bytes_ += bytes;
        if (move.kind == ChunkMove::Kind::claim) break;
        require(chunk.is_on_host, move.chunk, "is fetched, but the host does not have its contents");
        chunk.is_on_device = true;
        fetched_ += bytes;
        break;
      case ChunkMove::Kind::write_back:
        require(chunk.is_on_device, move.chunk, "is written back, but is not on the device");
        chunk.is_on_host = true;
        written_ += bytes;
        break;
      case ChunkMove::Kind::drop:
        require(chunk.has_device, move.chunk, "is dropped, but is not on the device");
        chunk.has_device = chunk.is_on_device = false;
        on_device_bytes_ -= bytes;
        break;
    }
  }

  void compute(int moment, size_t first, size_t end) {
    moment_ = moment;
    const int64_t budget = trace_.budget_bytes[static_cast<size_t>(moment)];
    if (on_device_bytes_ > budget)
      fail("the device", "has " + format_bytes(on_device_bytes_) + " of chunks, of " + format_bytes(budget));
    for (size_t u = first; u < end; ++u) use(trace_.uses[u]);
  }

  struct Chunk {
    bool has_device = false;    ///< memory
    bool is_on_device = false;  ///< the contents
    bool is_on_host = true;
    bool is_over = false;  ///< consumed
    bool operator==(const Chunk&) const noexcept = default;
  };
  const std::vector<Chunk>& chunks() const noexcept { return chunks_; }

  void finish(const ChunkPlan& plan) {
    moment_ = trace_.num_moments();
    for (size_t c = 0; c < chunks_.size(); ++c)
      require(chunks_[c].is_on_host || chunks_[c].is_over, static_cast<int>(c), "is not on the host at the end");
    if (fetched_ != plan.fetched_bytes || written_ != plan.written_bytes)
      fail("the plan", "moves other bytes than it says");
  }

 private:
  void use(const ChunkUse& use) {
    Chunk& chunk = chunks_[static_cast<size_t>(use.chunk)];
    if (!use.is_on_host) require(chunk.has_device, use.chunk, "is used, but is not on the device");
    bool& here = use.is_on_host ? chunk.is_on_host : chunk.is_on_device;
    bool& there = use.is_on_host ? chunk.is_on_device : chunk.is_on_host;
    if (use.access != ChunkAccess::overwrite) require(here, use.chunk, "is used without its contents");
    if (use.access == ChunkAccess::read) return;
    here = use.access != ChunkAccess::consume;
    there = false;
    chunk.is_over = use.access == ChunkAccess::consume;
  }

  void require(bool holds, int chunk, const char* fact) const {
    if (!holds) fail("chunk " + std::to_string(chunk), fact);
  }
  [[noreturn]] void fail(std::string subject, std::string fact) const {
    throw InternalError({.op = "chunks",
                         .subject = std::move(subject),
                         .fact = std::move(fact),
                         .where = "moment " + std::to_string(moment_),
                         .action = {}});
  }

  const ChunkTrace& trace_;
  std::vector<Chunk> chunks_;
  int64_t on_device_bytes_ = 0, fetched_ = 0, written_ = 0;
  int moment_ = 0;
};

// Bytes on the device while each moment computes.
std::vector<int64_t> bytes_on_device(const ChunkPlan& plan, const ChunkTrace& trace) {
  std::vector<int64_t> change(trace.budget_bytes.size() + 1, 0);
  for (const ChunkMove& move : plan.moves) {
    const int64_t bytes = trace.chunk_bytes[static_cast<size_t>(move.chunk)];
    if (move.kind == ChunkMove::Kind::drop)
      change[static_cast<size_t>(move.moment)] -= bytes;
    else if (move.kind != ChunkMove::Kind::write_back)
      change[static_cast<size_t>(move.moment)] += bytes;
  }
  for (size_t m = 1; m < change.size(); ++m) change[m] += change[m - 1];
  return change;
}

// Calls `begins` before the moves of each moment.
template <typename Begins>
void replay_moments(ChunkReplay& replay, const ChunkPlan& plan, const ChunkTrace& trace, const Begins& begins) {
  size_t move = 0;
  size_t use = 0;
  for (int moment = 0; moment < trace.num_moments(); ++moment) {
    begins(moment);
    while (move < plan.moves.size() && plan.moves[move].moment <= moment) replay.perform(plan.moves[move++]);
    const size_t first = use;
    while (use < trace.uses.size() && trace.uses[use].moment == moment) ++use;
    replay.compute(moment, first, use);
  }
  while (move < plan.moves.size()) replay.perform(plan.moves[move++]);
}

// The moves of moments first .. first + count - 1, counted from the first.
ChunkPlan cut_plan(const ChunkPlan& plan, const ChunkTrace& trace, int first, int count) {
  ChunkPlan result;
  for (ChunkMove move : plan.moves) {
    if (move.moment < first || move.moment >= first + count) continue;
    move.moment -= first;
    const int64_t bytes = trace.chunk_bytes[static_cast<size_t>(move.chunk)];
    if (move.kind == ChunkMove::Kind::fetch) result.fetched_bytes += bytes;
    if (move.kind == ChunkMove::Kind::write_back) result.written_bytes += bytes;
    result.moves.push_back(move);
  }
  return result;
}

}  // namespace

void check_moves(const ChunkPlan& plan, const ChunkTrace& trace) {
  ChunkReplay replay(trace);
  replay_moments(replay, plan, trace, [](int) {});
  replay.finish(plan);
}

ChunkPlan with_prefetch(const ChunkPlan& plan, const ChunkTrace& trace, int distance) {
  ChunkPlan result = plan;
  std::vector<int64_t> on_device = bytes_on_device(plan, trace);
  std::vector<int> earliest(trace.chunk_bytes.size(), 0);  // by chunk: after its last use and its last move
  size_t use = 0;
  for (ChunkMove& move : result.moves) {
    for (; use < trace.uses.size() && trace.uses[use].moment < move.moment; ++use)
      earliest[static_cast<size_t>(trace.uses[use].chunk)] = trace.uses[use].moment + 1;
    const auto chunk = static_cast<size_t>(move.chunk);
    if (move.kind != ChunkMove::Kind::fetch) {
      earliest[chunk] = move.moment + 1;
      continue;
    }
    const int64_t bytes = trace.chunk_bytes[chunk];
    const int least = std::max(earliest[chunk], move.moment - distance);
    while (move.moment > least) {
      const auto before = static_cast<size_t>(move.moment) - 1;
      if (on_device[before] + bytes > trace.budget_bytes[before]) break;
      on_device[before] += bytes;
      --move.moment;
    }
  }
  std::ranges::stable_sort(result.moves, {}, &ChunkMove::moment);
  return result;
}

const ChunkPlan& RepeatedPlan::step(size_t index) const {
  if (index < steps.size()) return steps[index];
  return steps.at(repeats_from + (index - repeats_from) % (steps.size() - repeats_from));
}

RepeatedPlan repeat_moves(const ChunkTrace& step, ChunkPolicy policy, int prefetch, int most_steps) {
  const int moments = step.num_moments();
  RepeatedPlan result;
  // Two more steps, so that the end of the trace does not show in those that are used.
  const ChunkTrace trace = repeat(step, most_steps + 2);
  const ChunkPlan plan = with_prefetch(plan_moves(trace, policy), trace, prefetch);
  std::vector<std::vector<ChunkReplay::Chunk>> states;  // at the beginning of each step
  ChunkReplay replay(trace);
  replay_moments(replay, plan, trace, [&](int moment) {
    if (moment % moments == 0) states.push_back(replay.chunks());
  });
  for (int end = 1; end <= most_steps; ++end) {
    result.steps.push_back(cut_plan(plan, trace, (end - 1) * moments, moments));
    const auto last = states.begin() + end;
    const auto same = std::find(states.begin(), last, *last);
    if (same == last) continue;
    result.repeats_from = static_cast<size_t>(same - states.begin());
    return result;
  }
  const ChunkTrace alone = repeat(step, most_steps);
  const ChunkPlan emptied = with_prefetch(plan_moves(alone, policy), alone, prefetch);
  result = {.is_emptied = true};
  for (int i = 0; i < most_steps; ++i)
    result.steps.push_back(cut_plan(emptied, alone, i * moments, i + 1 < most_steps ? moments : moments + 1));
  std::vector<bool> is_there(step.chunk_bytes.size(), false);
  for (const ChunkMove& move : emptied.moves)
    if (move.kind != ChunkMove::Kind::write_back)
      is_there[static_cast<size_t>(move.chunk)] = move.kind != ChunkMove::Kind::drop;
  for (size_t c = 0; c < is_there.size(); ++c)
    if (is_there[c])
      result.steps.back().moves.push_back(
          {.kind = ChunkMove::Kind::drop, .moment = moments, .chunk = static_cast<int>(c)});
  return result;
}

}  // namespace caravan
