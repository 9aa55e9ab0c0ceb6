#include "caravan/engine/flat/tier_sweep.h"

#include <algorithm>
#include <future>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/trace.h"

namespace caravan {
namespace {

constexpr size_t kSets = 3;

/// Whether a source is used, and has memory for elements of `bucket`.
bool has(const TierSweep::Source& source, const Bucket& bucket) {
  return source.is_used() && (source.on_device || source.flat->has(bucket.sharded_offset));
}

Tier tier_of(const TierSweep::Source& source) { return source.on_device ? Tier::device : source.flat->tier(); }

TierBlock& block_of(const TierSweep::Source& source, const Bucket& bucket) {
  return *source.flat->piece(bucket.sharded_offset, bucket.sharded_count).block;
}

/// Memory of a bucket on device or host. Writes on another thread must not change torch's version counters; the
/// Optimizer raises them itself.
at::Tensor resident(const TierSweep::Source& source, const Bucket& bucket) {
  if (source.on_device) return source.on_device(bucket);
  return source.flat->narrow(bucket.sharded_offset, bucket.sharded_count).variable_data();
}

/// The same for a sweep on the host, which runs after those that still use it.
at::Tensor resident_later(const TierSweep::Source& source, const Bucket& bucket) {
  if (source.on_device) return source.on_device(bucket);
  const FlatMemory::Piece& piece = source.flat->piece_in_use(bucket.sharded_offset, bucket.sharded_count);
  return piece.memory.narrow(0, bucket.sharded_offset - piece.offset, bucket.sharded_count).variable_data();
}

}  // namespace

/// A sweep on the host. The rank's thread adds the buckets and finds out where everything is; another thread runs it.
struct TierSweep::Run {
  struct Place {
    Tier tier = Tier::device;
    at::Tensor memory{};       ///< on device or host
    DiskStore::Block block{};  ///< on disk
    Event stored{};            ///< before it may be read
    bool is_there = false;
  };
  struct OfBucket {
    const Bucket* bucket = nullptr;
    std::vector<Place> places{};  ///< by source
    int64_t parts_left = 0;
    std::promise<void> done{};
  };
  struct OwnPart {
    size_t bucket = 0;
    int64_t begin = 0;
    int64_t count = 0;
  };
  /// The tensors of a part, and what is in flight for it.
  struct Set {
    std::vector<at::Tensor> tensors{};  ///< by source
    std::vector<Event> reads{}, writes{};
    size_t bucket = 0;
    bool is_used = false;
  };

  Tiers& tiers;
  const std::vector<std::vector<at::Tensor>>& staging;
  std::vector<Source> sources;
  Work work;
  std::vector<OfBucket> buckets{};
  std::vector<OwnPart> parts{};
  std::vector<Set> sets{};

  void add(const Bucket& bucket);
  void run();
  void start(size_t index);
  void store(const OwnPart& part, Set& set);
  void end(Set& set);
  void give_up(const std::exception_ptr& error) noexcept;
};

void TierSweep::Run::add(const Bucket& bucket) {
  OfBucket own;
  own.bucket = &bucket;
  bool is_here = true;
  for (const Source& source : sources) {
    Place place{.tier = tier_of(source), .is_there = has(source, bucket)};
    is_here &= place.tier == Tier::host || !place.is_there;
    if (place.is_there && place.tier != Tier::disk) place.memory = resident_later(source, bucket);
    if (place.is_there && place.tier != Tier::device) {
      const TierBlock& block = *source.flat->piece_in_use(bucket.sharded_offset, bucket.sharded_count).block;
      place.block = block.disk_block();
      place.stored = block.last_store();
    }
    own.places.push_back(std::move(place));
  }
  const int64_t most = is_here ? bucket.sharded_count : FlatMemory::kPart;
  for (int64_t begin = 0; begin < bucket.sharded_count; begin += most) {
    parts.push_back({buckets.size(), begin, std::min(most, bucket.sharded_count - begin)});
    ++own.parts_left;
  }
  buckets.push_back(std::move(own));
}

void TierSweep::Run::run() {
  const at::NoGradGuard no_grad;
  const HostKernelScope on_host;
  sets.resize(kSets);
  try {
    for (size_t i = 0; i < std::min(kSets - 1, parts.size()); ++i) start(i);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i + kSets - 1 < parts.size()) start(i + kSets - 1);
      Set& set = sets[i % kSets];
      for (const Event& read : set.reads) read.wait();
      set.reads.clear();
      work({*buckets[parts[i].bucket].bucket, parts[i].begin, parts[i].count, set.tensors});
      store(parts[i], set);
    }
    for (size_t i = parts.size(); i < parts.size() + kSets; ++i) end(sets[i % kSets]);
  } catch (...) {
    give_up(std::current_exception());
    throw;
  }
}

/// Waits for what is in flight, which uses the buffers, and gives the error to whoever waits for a bucket.
void TierSweep::Run::give_up(const std::exception_ptr& error) noexcept {
  for (const Set& set : sets) {
    for (const Event& read : set.reads) read.settle();
    for (const Event& write : set.writes) write.settle();
  }
  for (OfBucket& own : buckets) {
    own.places.clear();
    if (own.parts_left > 0) own.done.set_exception(error);
  }
}

/// The writes of the part that had this set before are over.
void TierSweep::Run::end(Set& set) {
  if (!set.is_used) return;
  for (const Event& write : set.writes) write.wait();
  set.writes.clear();
  set.tensors.clear();
  set.is_used = false;
  OfBucket& own = buckets[set.bucket];
  if (--own.parts_left > 0) return;
  own.places.clear();  // before others go on, so that their memory has returned then
  own.done.set_value();
}

void TierSweep::Run::start(size_t index) {
  const OwnPart& part = parts[index];
  Set& set = sets[index % kSets];
  end(set);
  set.bucket = part.bucket;
  set.is_used = true;
  set.tensors.assign(sources.size(), at::Tensor());
  for (size_t i = 0; i < sources.size(); ++i) {
    const Place& place = buckets[part.bucket].places[i];
    if (!place.is_there) continue;
    if (place.tier != Tier::device) place.stored.wait();
    if (sources[i].copy_of >= 0) continue;
    if (place.tier == Tier::host) {
      set.tensors[i] = place.memory.narrow(0, part.begin, part.count);
      continue;
    }
    const at::Tensor to = staging[index % kSets][i].narrow(0, 0, part.count);
    set.tensors[i] = to;
    if (!sources[i].is_read) continue;
    if (place.tier == Tier::device) {
      set.reads.push_back(tiers.copy_out(to, place.memory.narrow(0, part.begin, part.count)));
      continue;
    }
    const auto bytes = static_cast<int64_t>(to.nbytes());
    tiers.count({.from_disk = bytes});
    if (tiers.is_meta()) continue;
    set.reads.push_back(tiers.disk().read(place.block, part.begin * to.element_size(), to.data_ptr(), bytes));
  }
}

void TierSweep::Run::store(const OwnPart& part, Set& set) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const Place& place = buckets[part.bucket].places[i];
    const bool is_copy = sources[i].copy_of >= 0;
    const at::Tensor& from = set.tensors[static_cast<size_t>(is_copy ? sources[i].copy_of : static_cast<int>(i))];
    if (!sources[i].is_written || !place.is_there || !from.defined()) continue;
    if (place.tier == Tier::host) {
      if (is_copy) place.memory.narrow(0, part.begin, part.count).copy_(from);
      continue;
    }
    if (place.tier == Tier::device) {
      set.writes.push_back(tiers.copy_in(place.memory.narrow(0, part.begin, part.count), from));
      continue;
    }
    const auto bytes = static_cast<int64_t>(from.nbytes());
    tiers.count({.to_disk = bytes});
    if (tiers.is_meta()) continue;
    set.writes.push_back(tiers.disk().write(place.block, part.begin * from.element_size(), from.data_ptr(), bytes));
  }
}

TierSweep::TierSweep(const FlatState& state, Tier place) : tiers_(*state.tiers), place_(place) {
  for (const Bucket* bucket : trained_buckets(state.layout)) largest_ = std::max(largest_, bucket->sharded_count);
}

std::vector<const Bucket*> TierSweep::trained_buckets(const FlatLayout& layout) {
  std::vector<const Bucket*> buckets;
  for (const Bucket& bucket : layout.buckets()) {
    if (bucket.is_trained && bucket.sharded_count > 0) buckets.push_back(&bucket);
  }
  return buckets;
}

TierSweep::~TierSweep() {
  for (const Event& event : started_) event.settle();
}

void TierSweep::finish() {
  const std::vector<Event> all = std::exchange(started_, {});
  if (!all.empty()) {
    const TraceSpan span(TraceLog::kWait, "sweep");
    for (const Event& event : all) event.settle();
  }
  given_.clear();
  for (const Event& event : all) event.wait();
}

void TierSweep::reserve(const std::vector<Source>& sources) {
  if (!staging_.empty()) return;
  const MemoryKindScope kind(MemoryKind::buffers);
  const int64_t count = std::min(largest_, FlatMemory::kPart);
  staging_.assign(kSets, std::vector<at::Tensor>(sources.size()));
  for (std::vector<at::Tensor>& set : staging_) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const Source& source = sources[i];
      const bool is_used = source.on_device || source.flat->defined();
      const bool has_own = is_used && tier_of(source) != Tier::host && source.copy_of < 0;
      if (has_own) set[i] = tiers_.host_buffer(count, source.flat->scalar_type());
    }
  }
}

void TierSweep::start(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, Work work) {
  if (place_ == Tier::device) return run_on_device(buckets, sources, work);
  reserve(sources);
  const auto run =
      std::make_shared<Run>(Run{.tiers = tiers_, .staging = staging_, .sources = sources, .work = std::move(work)});
  for (const Bucket* bucket : buckets) run->add(*bucket);
  for (Run::OfBucket& own : run->buckets) {
    const Event done(own.done.get_future().share());
    started_.push_back(done);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].on_device && sources[i].is_used()) sources[i].flat->set_use(own.bucket->sharded_offset, done);
      if (sources[i].on_device) given_.push_back(own.places[i].memory);
    }
  }
  started_.push_back(tiers_.run_on_host("optimizer", [run] { run->run(); }));
}

void TierSweep::run_on_device(std::span<const Bucket* const> buckets, const std::vector<Source>& sources,
                              const Work& work) {
  struct Buffers {
    std::vector<at::Tensor> tensors{};  ///< of a bucket, by source
    std::vector<Event> reads{};
  };
  const auto begin = [&](const Bucket& bucket) {
    Buffers own;
    own.tensors.resize(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      if (bucket.sharded_count == 0 || !has(sources[i], bucket)) continue;
      if (tier_of(sources[i]) == Tier::device) {
        own.tensors[i] = resident(sources[i], bucket);
        continue;
      }
      const MemoryKindScope kind(MemoryKind::buffers);
      own.tensors[i] = at::empty({bucket.sharded_count}, sources[i].flat->options());
      if (sources[i].is_read) own.reads.push_back(block_of(sources[i], bucket).load(own.tensors[i], "optimizer"));
    }
    return own;
  };
  Buffers next;
  if (!buckets.empty()) next = begin(*buckets.front());
  for (size_t k = 0; k < buckets.size(); ++k) {
    Buffers own = std::move(next);
    next = k + 1 < buckets.size() ? begin(*buckets[k + 1]) : Buffers();
    const Bucket& bucket = *buckets[k];
    if (bucket.sharded_count == 0) continue;
    {
      const TraceSpan span(TraceLog::kWait, "read");
      for (const Event& read : own.reads) read.wait();
    }
    work({bucket, 0, bucket.sharded_count, own.tensors});
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].is_written || !own.tensors[i].defined() || tier_of(sources[i]) == Tier::device) continue;
      block_of(sources[i], bucket).store(own.tensors[i], "optimizer");
    }
  }
  tiers_.finish_stores();
}

}  // namespace caravan
