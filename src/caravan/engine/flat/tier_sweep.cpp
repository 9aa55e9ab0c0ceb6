#include "caravan/engine/flat/tier_sweep.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/trace.h"

namespace caravan {
namespace {

constexpr size_t kSets = 3;

/// Whether a source has memory for elements of `bucket`.
bool has(const TierSweep::Source& source, const Bucket& bucket) {
  return source.on_device || source.flat->has(bucket.sharded_offset);
}

Tier tier_of(const TierSweep::Source& source) { return source.on_device ? Tier::device : source.flat->tier(); }

at::Tensor resident(const TierSweep::Source& source, const Bucket& bucket, int64_t begin, int64_t count) {
  if (source.on_device) return source.on_device(bucket).narrow(0, begin, count);
  return source.flat->narrow(bucket.sharded_offset + begin, count);
}

TierBlock& block_of(const TierSweep::Source& source, const Bucket& bucket) {
  return *source.flat->piece(bucket.sharded_offset, bucket.sharded_count).block;
}

}  // namespace

void TierSweep::run(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, const Work& work) {
  place_ == Tier::host ? run_on_host(buckets, sources, work) : run_on_device(buckets, sources, work);
}

at::Tensor TierSweep::staging(Buffers& buffers, size_t source, int64_t count, const at::TensorOptions& options) {
  buffers.staging.resize(std::max(buffers.staging.size(), source + 1));
  at::Tensor& own = buffers.staging[source];
  if (!own.defined() || own.numel() < count) {
    const MemoryKindScope kind(MemoryKind::buffers);
    own = at::Tensor();
    own = tiers_.host_tensor(count, c10::typeMetaToScalarType(options.dtype()));
  }
  return own.narrow(0, 0, count);
}

void TierSweep::start(const Chunk& chunk, const std::vector<Source>& sources, Buffers& buffers) {
  for (const Event& write : buffers.writes) write.wait();  // of the part that had these buffers before
  buffers.writes.clear();
  buffers.tensors.assign(sources.size(), at::Tensor());
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    const Bucket& bucket = *chunk.bucket;
    if (!has(source, bucket)) continue;
    if (tier_of(source) == Tier::host) {
      block_of(source, bucket).last_store().wait();
      buffers.tensors[i] = resident(source, bucket, chunk.begin, chunk.count);
      continue;
    }
    at::Tensor on_device;
    if (tier_of(source) == Tier::device) on_device = resident(source, bucket, chunk.begin, chunk.count);
    const at::Tensor to =
        staging(buffers, i, chunk.count, on_device.defined() ? on_device.options() : source.flat->options());
    buffers.tensors[i] = to;
    const auto bytes = static_cast<int64_t>(to.nbytes());
    if (!source.is_read) continue;
    if (on_device.defined()) {
      buffers.reads.push_back(tiers_.copy_out(to, on_device));
      continue;
    }
    tiers_.count({.from_disk = bytes});
    if (tiers_.is_meta()) continue;
    const TierBlock& block = block_of(source, bucket);
    block.last_store().wait();
    buffers.reads.push_back(
        tiers_.disk().read(block.disk_block(), chunk.begin * to.element_size(), to.data_ptr(), bytes));
  }
}

void TierSweep::finish(const Chunk& chunk, const std::vector<Source>& sources, Buffers& buffers) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    const at::Tensor& from = buffers.tensors[i];
    if (!source.is_written || !from.defined() || tier_of(source) == Tier::host) continue;
    if (tier_of(source) == Tier::device) {
      buffers.writes.push_back(tiers_.copy_in(resident(source, *chunk.bucket, chunk.begin, chunk.count), from));
      continue;
    }
    tiers_.count({.to_disk = static_cast<int64_t>(from.nbytes())});
    if (tiers_.is_meta()) continue;
    const TierBlock& block = block_of(source, *chunk.bucket);
    buffers.writes.push_back(tiers_.disk().write(block.disk_block(), chunk.begin * from.element_size(), from.data_ptr(),
                                                 static_cast<int64_t>(from.nbytes())));
  }
}

void TierSweep::run_on_host(std::span<const Bucket* const> buckets, const std::vector<Source>& sources,
                            const Work& work) {
  std::vector<Chunk> chunks;
  const bool is_here = std::ranges::all_of(sources, [](const Source& source) { return tier_of(source) == Tier::host; });
  for (const Bucket* bucket : buckets) {
    const int64_t most = is_here ? std::max<int64_t>(bucket->sharded_count, 1) : FlatMemory::kPart;
    for (int64_t begin = 0; begin < bucket->sharded_count; begin += most) {
      chunks.push_back({bucket, begin, std::min(most, bucket->sharded_count - begin)});
    }
  }
  sets_.resize(kSets);
  struct Drain {  // also after an error: what is in flight uses the buffers
    std::vector<Buffers>& sets;
    ~Drain() {
      for (Buffers& own : sets) {
        for (const Event& read : own.reads) read.settle();
        for (const Event& write : own.writes) write.settle();
        own = {.staging = std::move(own.staging)};
      }
    }
  };
  const HostAccess access(tiers_);
  const Drain drain{sets_};
  for (size_t i = 0; i < std::min(kSets - 1, chunks.size()); ++i) start(chunks[i], sources, sets_[i]);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const size_t ahead = i + kSets - 1;
    if (ahead < chunks.size()) start(chunks[ahead], sources, sets_[ahead % kSets]);
    Buffers& own = sets_[i % kSets];
    {
      const TraceSpan span(TraceLog::kWait, "read");
      for (const Event& read : own.reads) read.wait();
    }
    own.reads.clear();
    work({*chunks[i].bucket, chunks[i].begin, chunks[i].count, own.tensors});
    finish(chunks[i], sources, own);
  }
  for (const Buffers& own : sets_) {
    for (const Event& write : own.writes) write.wait();
  }
}

void TierSweep::run_on_device(std::span<const Bucket* const> buckets, const std::vector<Source>& sources,
                              const Work& work) {
  const auto begin = [&](const Bucket& bucket) {
    Buffers own;
    own.tensors.resize(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      if (bucket.sharded_count == 0 || !has(sources[i], bucket)) continue;
      if (tier_of(sources[i]) == Tier::device) {
        own.tensors[i] = resident(sources[i], bucket, 0, bucket.sharded_count);
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
    for (const Event& read : own.reads) read.wait();
    work({bucket, 0, bucket.sharded_count, own.tensors});
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].is_written || !own.tensors[i].defined() || tier_of(sources[i]) == Tier::device) continue;
      block_of(sources[i], bucket).store(own.tensors[i], "optimizer");
    }
  }
  tiers_.finish_stores();
}

}  // namespace caravan
