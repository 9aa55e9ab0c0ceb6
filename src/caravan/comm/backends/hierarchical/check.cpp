#include "caravan/comm/backends/hierarchical/check.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "caravan/comm/backends/shared/calls/compare_calls.h"
#include "caravan/comm/calls/call_errors.h"

namespace caravan::hierarchical {
namespace {

uint64_t mix(uint64_t value) noexcept {  // the finalizer of splitmix64
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
  return value ^ value >> 31;
}

uint64_t pair(int from, int to, int64_t count) noexcept {
  const uint64_t ranks = static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to);
  return mix(mix(ranks + 0x9e3779b97f4a7c15ULL) ^ static_cast<uint64_t>(count));
}

template <class T>
Buffer bytes_of(std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size() * sizeof(T)), Dtype::uint8, {}};
}
template <class T>
ConstBuffer bytes_of(const T& value) {
  return {&value, sizeof(T), Dtype::uint8};
}

}  // namespace

Check::Check(HierarchicalTask& task, Note note)
    : task_(task),
      own_(task.descriptor()),
      note_(std::move(note)),
      local_lines_(task.levels().local_ranks().size()),
      host_lines_(static_cast<size_t>(task.levels().topology.num_hosts())),
      own_sheet_(task.levels().topology.size()) {}

CallLine Check::own_line() const {
  const Operation& op = *task_.operation();
  CallLine line;
  line.call = own_;
  line.digest = is_split() ? ~uint64_t{0} : mix(mix(shared::call_signature(op)) ^ shared::size_signature(op));
  if (op.verb != Verb::all_to_all || is_split()) return line;
  const int rank = task_.levels().rank;
  for (int peer = 0; peer < task_.levels().topology.size(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    line.pairs += pair(rank, peer, op.send_counts[at]) - pair(peer, rank, op.recv_counts[at]);
  }
  return line;
}

CallLine Check::line_of_host() const {
  CallLine line = local_lines_.front();
  line.pairs = 0;
  for (const CallLine& peer : local_lines_) {
    line.pairs += peer.pairs;
    if (peer.digest != line.digest) line.agrees = 0;
  }
  return line;
}

void Check::add_steps() {
  const Levels& levels = task_.levels();
  local_lines_[static_cast<size_t>(levels.local_rank())] = own_line();
  task_.then(levels.local.get(), [this](Communicator& local) {
    const CallLine& own = local_lines_[static_cast<size_t>(task_.levels().local_rank())];
    return local.all_gather_async(bytes_of(own), bytes_of(local_lines_), {}, task_.call());
  });
  if (levels.is_leader()) {
    task_.then(levels.cross.get(), [this](Communicator& cross) {
      CallLine& own = host_lines_[static_cast<size_t>(task_.levels().host())];
      own = line_of_host();
      return cross.all_gather_async(bytes_of(own), bytes_of(host_lines_), {}, task_.call());
    });
  }
  task_.then(levels.local.get(),
             [this](Communicator& local) { return local.broadcast_async(bytes_of(host_lines_), 0, task_.call()); });
  task_.then_here([this] { judge(); });
}

void Check::judge() {
  const Levels& levels = task_.levels();
  for (int host = 0; host < levels.topology.num_hosts(); ++host) {
    const bool is_own = host == levels.host();
    for (const int rank : levels.topology.ranks[static_cast<size_t>(host)]) {
      if (rank == levels.rank) continue;
      const auto local_rank = static_cast<size_t>(levels.topology.local_rank[static_cast<size_t>(rank)]);
      note_(rank, is_own ? local_lines_[local_rank].call : host_lines_[static_cast<size_t>(host)].call);
    }
  }
  const bool agree = std::ranges::all_of(
      host_lines_, [&](const CallLine& line) { return line.agrees != 0 && line.digest == host_lines_.front().digest; });
  const uint64_t pairs = std::accumulate(host_lines_.begin(), host_lines_.end(), uint64_t{0},
                                         [](uint64_t sum, const CallLine& line) { return sum + line.pairs; });
  if (agree && pairs == 0 && !is_split()) return;
  task_.first(sheet_steps());
}

std::vector<HierarchicalTask::Step> Check::sheet_steps() {
  const Topology& topology = task_.levels().topology;
  const int64_t each = own_sheet_.bytes();
  bytes_.resize(static_cast<size_t>(each * topology.size()));
  std::vector<int64_t> host_bytes;
  int64_t begin = 0;
  for (int host = 0; host < topology.num_hosts(); ++host) {
    if (host == task_.levels().host()) begin = std::accumulate(host_bytes.begin(), host_bytes.end(), int64_t{0});
    host_bytes.push_back(each * static_cast<int64_t>(topology.ranks[static_cast<size_t>(host)].size()));
  }
  own_sheet_.write(own_, task_.op().send_counts, task_.op().recv_counts);
  const Buffer block{bytes_.data() + begin, host_bytes[static_cast<size_t>(task_.levels().host())], Dtype::uint8, {}};
  const Levels& levels = task_.levels();
  std::vector<HierarchicalTask::Step> steps;
  steps.push_back({levels.local.get(), [this, block, each](Communicator& local) {
                     return local.all_gather_async({own_sheet_.data(), each, Dtype::uint8}, block, {}, task_.call());
                   }});
  if (levels.is_leader()) {
    steps.push_back({levels.cross.get(), [this, block, host_bytes](Communicator& cross) {
                       return cross.all_gather_async(block, bytes_of(bytes_), host_bytes, task_.call());
                     }});
  }
  steps.push_back({levels.local.get(),
                   [this](Communicator& local) { return local.broadcast_async(bytes_of(bytes_), 0, task_.call()); }});
  steps.push_back({levels.local.get(), [this](Communicator&) {
                     judge_sheets();
                     return Work{};
                   }});
  return steps;
}

void Check::judge_sheets() {
  const Topology& topology = task_.levels().topology;
  sheets_.assign(static_cast<size_t>(topology.size()), messages::CallSheet(topology.size()));
  size_t at = 0;
  for (const int rank : topology.by_host()) {
    messages::CallSheet& sheet = sheets_[static_cast<size_t>(rank)];
    std::memcpy(sheet.data(), bytes_.data() + at, static_cast<size_t>(sheet.bytes()));
    at += static_cast<size_t>(sheet.bytes());
  }
  const std::string text = messages::difference_of(sheets_);
  if (!text.empty()) throw CallsDiffer{mismatch_error(task_.group(), own_, "the ranks' calls differ: " + text)};
}

}  // namespace caravan::hierarchical
