#include "caravan/memory/chunks/chunk_gaps.h"

namespace caravan {
namespace {

// Goes through the uses of one chunk.
class GapReader {
 public:
  GapReader(const ChunkTrace& trace, ChunkGaps& result) : trace_(trace), result_(result) {}

  void read(const std::vector<int>& uses) {
    for (const int index : uses) {
      const ChunkUse& use = trace_.uses[static_cast<size_t>(index)];
      if (last_ >= 0) result_.is_needed[static_cast<size_t>(last_)] = use.access != ChunkAccess::overwrite;
      if (use.is_on_host)
        host_use(use);
      else
        device_use(index, use);
      last_ = index;
    }
    if (last_ >= 0 && trace_.uses[static_cast<size_t>(last_)].access != ChunkAccess::consume) {
      result_.is_needed[static_cast<size_t>(last_)] = true;
      host_needs_contents();
    }
    close_version();
  }

 private:
  int64_t bytes(const ChunkUse& use) const { return trace_.chunk_bytes[static_cast<size_t>(use.chunk)]; }

  void host_use(const ChunkUse& use) {
    if (use.access != ChunkAccess::overwrite) host_needs_contents();
    if (use.access == ChunkAccess::read) return;
    close_version();
    on_device_ = -1;
  }

  void device_use(int index, const ChunkUse& use) {
    if (use.access == ChunkAccess::overwrite) {
      close_version();
    } else if (on_device_ < 0) {
      result_.unavoidable_bytes += bytes(use);
    } else {
      const int from = trace_.uses[static_cast<size_t>(on_device_)].moment;
      result_.gap_of_use[static_cast<size_t>(on_device_)] = static_cast<int>(result_.gaps.size());
      open_gaps_.push_back(result_.gaps.size());
      result_.gaps.push_back(
          {.use = on_device_, .from = from, .to = use.moment, .chunk = use.chunk, .fetch_bytes = bytes(use)});
    }
    if (use.access == ChunkAccess::modify || use.access == ChunkAccess::overwrite) {
      close_version();
      is_written_ = true;
      version_bytes_ = bytes(use);
    }
    if (use.access == ChunkAccess::consume) close_version();
    on_device_ = use.access == ChunkAccess::consume ? -1 : index;
  }

  void host_needs_contents() {
    if (!is_written_) return;
    result_.unavoidable_bytes += version_bytes_;
    is_written_ = false;
    open_gaps_.clear();
  }

  // The contents end here. If the host has not needed them, only the gaps pay for their write-back.
  void close_version() {
    if (is_written_ && !open_gaps_.empty()) {
      for (const size_t gap : open_gaps_) result_.gaps[gap].version = static_cast<int>(result_.version_bytes.size());
      result_.version_bytes.push_back(version_bytes_);
    }
    is_written_ = false;
    open_gaps_.clear();
  }

  const ChunkTrace& trace_;
  ChunkGaps& result_;
  int last_ = -1;       ///< the last use
  int on_device_ = -1;  ///< the last use on the device whose contents are still right there
  bool is_written_ = false;
  int64_t version_bytes_ = 0;
  std::vector<size_t> open_gaps_;  ///< of the version
};

}  // namespace

ChunkGaps gaps_of(const ChunkTrace& trace) {
  ChunkGaps result;
  result.gap_of_use.assign(trace.uses.size(), -1);
  result.is_needed.assign(trace.uses.size(), false);
  std::vector<std::vector<int>> uses(trace.chunk_bytes.size());
  for (size_t i = 0; i < trace.uses.size(); ++i)
    uses[static_cast<size_t>(trace.uses[i].chunk)].push_back(static_cast<int>(i));
  for (const std::vector<int>& of_chunk : uses) GapReader(trace, result).read(of_chunk);
  return result;
}

}  // namespace caravan
