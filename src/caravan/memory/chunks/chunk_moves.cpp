#include "caravan/memory/chunks/chunk_moves.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/memory/chunks/chunk_gaps.h"

namespace caravan {
namespace {

// A chunk on the device that may leave.
struct Candidate {
  int last_use = 0;  ///< index
  int last_moment = 0;
  int next_moment = 0;  ///< of the use that needs its contents on the device; far away if there is none
  int64_t cost = 0;     ///< bytes that leaving now adds
};

// Higher leaves first.
using Score = std::function<double(const Candidate&, int moment)>;

class ChunkWalk {
 public:
  ChunkWalk(const ChunkTrace& trace, const ChunkGaps& gaps, Score score, const std::vector<bool>* keeps = nullptr)
      : trace_(trace), gaps_(gaps), score_(std::move(score)), keeps_(keeps), chunks_(trace.chunk_bytes.size()) {}

  ChunkPlan run() {
    size_t next = 0;
    for (int moment = 0; moment < trace_.num_moments(); ++moment) {
      const size_t first = next;
      while (next < trace_.uses.size() && trace_.uses[next].moment == moment) ++next;
      step(moment, first, next);
    }
    for (size_t c = 0; c < chunks_.size(); ++c)
      if (chunks_[c].is_on_device && needs_write_back(c)) write_back(trace_.num_moments(), c);
    return std::move(plan_);
  }

 private:
  struct Chunk {
    bool is_on_device = false;
    bool is_written = false;  ///< the host does not have the contents
    bool is_used = false;     ///< at this moment
    int last_use = -1;
  };

  void step(int moment, size_t first, size_t end) {
    for (size_t c = 0; c < chunks_.size(); ++c)
      if (chunks_[c].is_on_device && is_over(chunks_[c])) leave(moment, c);
    for (size_t u = first; u < end; ++u)
      if (trace_.uses[u].is_on_host) use_on_host(moment, u);
    int64_t coming = 0;
    for (size_t u = first; u < end; ++u) {
      if (trace_.uses[u].is_on_host) continue;
      Chunk& chunk = of(u);
      chunk.is_used = true;
      if (!chunk.is_on_device) coming += bytes(index(u));
    }
    make_room(moment, trace_.budget_bytes[static_cast<size_t>(moment)] - coming);
    for (size_t u = first; u < end; ++u)
      if (!trace_.uses[u].is_on_host) use_on_device(moment, u);
    for (size_t u = first; u < end; ++u) of(u).is_used = false;
  }

  size_t index(size_t use) const { return static_cast<size_t>(trace_.uses[use].chunk); }
  Chunk& of(size_t use) { return chunks_[index(use)]; }
  int64_t bytes(size_t chunk) const { return trace_.chunk_bytes[chunk]; }

  // Nothing on the device needs what the chunk has there. A fixed plan also says so.
  bool is_over(const Chunk& chunk) const {
    const auto use = static_cast<size_t>(chunk.last_use);
    if (keeps_ != nullptr && !(*keeps_)[use]) return true;
    return gaps_.gap_of_use[use] < 0 && !gaps_.is_needed[use];
  }
  // A fixed plan keeps it for a use on the device.
  bool is_fixed(const Chunk& chunk) const {
    return keeps_ != nullptr && gaps_.gap_of_use[static_cast<size_t>(chunk.last_use)] >= 0;
  }
  bool needs_write_back(size_t c) const {
    return chunks_[c].is_written && gaps_.is_needed[static_cast<size_t>(chunks_[c].last_use)];
  }

  void use_on_host(int moment, size_t use) {
    const size_t c = index(use);
    const ChunkAccess access = trace_.uses[use].access;
    if (chunks_[c].is_on_device && access != ChunkAccess::overwrite && needs_write_back(c)) write_back(moment, c);
    if (chunks_[c].is_on_device && access != ChunkAccess::read) {
      chunks_[c].is_written = false;
      leave(moment, c);
    }
  }

  void use_on_device(int moment, size_t use) {
    const size_t c = index(use);
    const ChunkAccess access = trace_.uses[use].access;
    if (!chunks_[c].is_on_device) {
      const bool is_fetched = access != ChunkAccess::overwrite;
      move(is_fetched ? ChunkMove::Kind::fetch : ChunkMove::Kind::claim, moment, c);
      if (is_fetched) plan_.fetched_bytes += bytes(c);
      on_device_bytes_ += bytes(c);
    }
    chunks_[c].is_on_device = true;
    if (access == ChunkAccess::modify || access == ChunkAccess::overwrite) chunks_[c].is_written = true;
    chunks_[c].last_use = static_cast<int>(use);
  }

  void make_room(int moment, int64_t room) {
    while (on_device_bytes_ > room) {
      double best = -std::numeric_limits<double>::infinity();
      int victim = -1;
      for (size_t c = 0; c < chunks_.size(); ++c) {
        if (!chunks_[c].is_on_device || chunks_[c].is_used || is_fixed(chunks_[c])) continue;
        const double score = score_(candidate(c), moment);
        if (victim < 0 || score > best) {
          best = score;
          victim = static_cast<int>(c);
        }
      }
      if (victim < 0)
        throw UsageError({.op = "chunks",
                          .subject = "moment " + std::to_string(moment),
                          .fact = "has " + format_bytes(on_device_bytes_) + " of chunks that must stay, and room for " +
                                  format_bytes(room),
                          .where = {},
                          .action = "keep fewer chunks on the device"});
      leave(moment, static_cast<size_t>(victim));
    }
  }

  Candidate candidate(size_t c) const {
    const auto use = static_cast<size_t>(chunks_[c].last_use);
    const int gap = gaps_.gap_of_use[use];
    Candidate result{.last_use = chunks_[c].last_use,
                     .last_moment = trace_.uses[use].moment,
                     .next_moment = 2 * trace_.num_moments()};
    if (gap < 0) return result;  // what the host gets, it gets anyway
    const ChunkGap& next = gaps_.gaps[static_cast<size_t>(gap)];
    result.next_moment = next.to;
    result.cost = next.fetch_bytes;
    if (next.version >= 0 && chunks_[c].is_written)
      result.cost += gaps_.version_bytes[static_cast<size_t>(next.version)];
    return result;
  }

  void write_back(int moment, size_t c) {
    move(ChunkMove::Kind::write_back, moment, c);
    plan_.written_bytes += bytes(c);
    chunks_[c].is_written = false;
  }
  void leave(int moment, size_t c) {
    if (needs_write_back(c)) write_back(moment, c);
    move(ChunkMove::Kind::drop, moment, c);
    on_device_bytes_ -= bytes(c);
    chunks_[c].is_on_device = chunks_[c].is_written = false;
  }
  void move(ChunkMove::Kind kind, int moment, size_t c) {
    plan_.moves.push_back({.kind = kind, .moment = moment, .chunk = static_cast<int>(c)});
  }

  const ChunkTrace& trace_;
  const ChunkGaps& gaps_;
  Score score_;
  const std::vector<bool>* keeps_;
  std::vector<Chunk> chunks_;
  ChunkPlan plan_;
  int64_t on_device_bytes_ = 0;
};

double score_lru(const Candidate& c, int) { return -c.last_use; }
double score_latest(const Candidate& c, int) { return c.next_moment; }

// Room in bytes x moments for each byte that is moved for it, the latter weighted.
Score score_per_byte(double weight) {
  return [weight](const Candidate& c, int moment) {
    if (c.cost == 0) return std::numeric_limits<double>::max();
    return std::log(c.next_moment - moment) - weight * std::log(static_cast<double>(c.cost));
  };
}

}  // namespace

std::string_view name(ChunkPolicy policy) noexcept {
  return policy == ChunkPolicy::lru ? "lru" : policy == ChunkPolicy::latest ? "latest" : "recorded";
}

ChunkPlan plan_moves(const ChunkTrace& trace, ChunkPolicy policy) {
  trace.validate();
  const ChunkGaps gaps = gaps_of(trace);
  if (policy == ChunkPolicy::lru) return ChunkWalk(trace, gaps, score_lru).run();
  if (policy == ChunkPolicy::latest) return ChunkWalk(trace, gaps, score_latest).run();
  ChunkPlan best;
  bool has_best = false;
  for (const double weight : {0.0, 0.25, 0.5, 1.0, 2.0, 8.0}) {
    ChunkPlan plan = ChunkWalk(trace, gaps, score_per_byte(weight)).run();
    if (has_best && plan.moved_bytes() >= best.moved_bytes()) continue;
    best = std::move(plan);
    has_best = true;
  }
  return best;
}

ChunkPlan plan_moves(const ChunkTrace& trace, const std::vector<bool>& keeps) {
  trace.validate();
  const ChunkGaps gaps = gaps_of(trace);
  return ChunkWalk(trace, gaps, score_lru, &keeps).run();
}

}  // namespace caravan
