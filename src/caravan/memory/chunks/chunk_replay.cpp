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
  };

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

void replay_moments(ChunkReplay& replay, const ChunkPlan& plan, const ChunkTrace& trace) {
  size_t move = 0;
  size_t use = 0;
  for (int moment = 0; moment < trace.num_moments(); ++moment) {
    while (move < plan.moves.size() && plan.moves[move].moment <= moment) replay.perform(plan.moves[move++]);
    const size_t first = use;
    while (use < trace.uses.size() && trace.uses[use].moment == moment) ++use;
    replay.compute(moment, first, use);
  }
  while (move < plan.moves.size()) replay.perform(plan.moves[move++]);
}

}  // namespace

void check_moves(const ChunkPlan& plan, const ChunkTrace& trace) {
  ChunkReplay replay(trace);
  replay_moments(replay, plan, trace);
  replay.finish(plan);
}

namespace {

// Moves fetches of a plan up, and the drops that make room for them.
class Prefetch {
 public:
  Prefetch(const ChunkPlan& plan, const ChunkTrace& trace)
      : plan_(plan), trace_(trace), on_device_(bytes_on_device(plan, trace)), drops_(trace.budget_bytes.size() + 1) {
    std::vector<int> last(trace.chunk_bytes.size(), -1);
    std::vector<size_t> written(trace.chunk_bytes.size(), kNone);
    size_t use = 0;
    for (size_t i = 0; i < plan.moves.size(); ++i) {
      const ChunkMove& move = plan.moves[i];
      for (; use < trace.uses.size() && trace.uses[use].moment < move.moment; ++use)
        last[static_cast<size_t>(trace.uses[use].chunk)] = trace.uses[use].moment;
      const auto chunk = static_cast<size_t>(move.chunk);
      if (move.kind == ChunkMove::Kind::write_back) written[chunk] = i;
      if (move.kind != ChunkMove::Kind::drop) continue;
      const bool is_now = written[chunk] != kNone && plan.moves[written[chunk]].moment == move.moment;
      drops_[static_cast<size_t>(move.moment)].push_back({i, is_now ? written[chunk] : kNone, last[chunk] + 1});
    }
  }

  ChunkPlan run(int distance) {
    std::vector<int> earliest(trace_.chunk_bytes.size(), 0);  // by chunk: after its last use and its last move
    size_t use = 0;
    for (ChunkMove& move : plan_.moves) {
      for (; use < trace_.uses.size() && trace_.uses[use].moment < move.moment; ++use)
        earliest[static_cast<size_t>(trace_.uses[use].chunk)] = trace_.uses[use].moment + 1;
      const auto chunk = static_cast<size_t>(move.chunk);
      if (move.kind != ChunkMove::Kind::fetch) {
        earliest[chunk] = move.moment + 1;
        continue;
      }
      const int64_t bytes = trace_.chunk_bytes[chunk];
      const int least = std::max(earliest[chunk], move.moment - distance);
      while (move.moment > least && make_room(move.moment - 1, bytes)) {
        --move.moment;
        on_device_[static_cast<size_t>(move.moment)] += bytes;
      }
    }
    std::ranges::stable_sort(plan_.moves, {}, &ChunkMove::moment);
    return std::move(plan_);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct Drop {
    size_t move = 0;
    size_t write_back = kNone;  ///< at the same moment, which goes with it
    int from = 0;               ///< the moment from which on nothing uses the chunk
  };

  bool make_room(int moment, int64_t bytes) {
    const auto m = static_cast<size_t>(moment);
    std::vector<Drop>& later = drops_[m + 1];
    for (size_t i = 0; i < later.size() && on_device_[m] + bytes > trace_.budget_bytes[m];) {
      if (later[i].from > moment) {
        ++i;
        continue;
      }
      const size_t at = later[i].move;
      const int chunk = plan_.moves[at].chunk;
      plan_.moves[at].moment = moment;
      if (later[i].write_back != kNone) plan_.moves[later[i].write_back].moment = moment;
      on_device_[m] -= trace_.chunk_bytes[static_cast<size_t>(chunk)];
      drops_[m].push_back(later[i]);
      later.erase(later.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return on_device_[m] + bytes <= trace_.budget_bytes[m];
  }

  ChunkPlan plan_;
  const ChunkTrace& trace_;
  std::vector<int64_t> on_device_;
  std::vector<std::vector<Drop>> drops_;  ///< by moment
};

}  // namespace

ChunkPlan with_prefetch(const ChunkPlan& plan, const ChunkTrace& trace, int distance) {
  return Prefetch(plan, trace).run(distance);
}

}  // namespace caravan
