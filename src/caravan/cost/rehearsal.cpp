#include "caravan/cost/rehearsal.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/trace/trace.h"
#include "caravan/cost/torch_kernels.h"

namespace caravan {
namespace {

/// By axis, verb and place.
using Sums = std::map<std::tuple<std::string, Verb, std::string>, SentCalls>;

void add(Sums& sums, const SentCalls& one, double times = 1) {
  SentCalls& sum = sums[{one.axis, one.verb, one.place}];
  sum.axis = one.axis;
  sum.verb = one.verb;
  sum.place = one.place;
  sum.calls += times * one.calls;
  sum.bytes += times * one.bytes;
  sum.exposed_bytes += times * one.exposed_bytes;
}

std::vector<SentCalls> values(const Sums& sums) {
  std::vector<SentCalls> all;
  for (const auto& [key, sum] : sums) all.push_back(sum);
  return all;
}

/// The verb in the name of a span: "all_gather blocks.0".
Verb verb_of(std::string_view span) {
  span = span.substr(0, span.find(' '));
  for (int verb = 0; verb < kNumVerbs; ++verb) {
    if (name(static_cast<Verb>(verb)) == span) return static_cast<Verb>(verb);
  }
  return Verb::barrier;
}

int64_t number_of(const TraceLog::Args& args, std::string_view name) {
  const auto found = std::ranges::find_if(args, [&](const auto& arg) { return arg.first == name; });
  return found == args.end() ? -1 : found->second;
}

/// Follows a step by the spans of its trace and its kernels, and reads the memory counter at the begin and end of each
/// span.
class Watch final : public TraceLog, public KernelLog {
 public:
  explicit Watch(MemoryCounter& memory) : memory_(memory) { restart("making the model"); }

  /// From here on events belong to `what`, until a span says otherwise.
  void restart(const std::string& what) {
    look();
    events_.clear();
    sums_.clear();
    open_.clear();
    events_.push_back({.what = what});
    current_ = 0;
    timeline_.take();
    timeline_.begin_event(what);
  }
  size_t begin(std::string_view row, std::string span, Args args) override;
  void end(size_t number) noexcept override;
  void add(KernelWork work) override {
    work.is_on_host = HostKernelScope::is_active();
    timeline_.add(work);
  }
  /// Of what was seen since restart().
  StepTimeline timeline() { return timeline_.take(); }

  /// Reads the counter a last time, and adds what was seen since restart() to `rehearsal`.
  void finish(Rehearsal& rehearsal);
  const Sums& sums() const noexcept { return sums_; }
  const MemoryBytes& host_peak() const noexcept { return host_peak_; }

 private:
  struct Open {
    size_t number;
    size_t event;
    size_t num_events;              ///< that had begun
    std::optional<SentCalls> call;  ///< absent: the span is an event
    std::string name;
    int32_t of_timeline = 0;  ///< number of the call
  };
  void look() noexcept;

  MemoryCounter& memory_;
  std::vector<RehearsedEvent> events_;
  size_t current_ = 0;      ///< of events_: the innermost that is open, else the last
  std::vector<Open> open_;  ///< spans, in the order in which they began
  Sums sums_;
  size_t next_ = 0;
  TimelineBuilder timeline_;
  MemoryBytes peak_{}, host_peak_{};
  std::string peak_event_;
};

/// Charges what has changed since the last call to the event that was open meanwhile.
void Watch::look() noexcept {
  if (events_.empty()) return;
  RehearsedEvent& event = events_[current_];
  const MemoryBytes peak{memory_.at_peak()};
  if (peak.total() > event.peak.total()) event.peak = peak;
  if (peak.total() > peak_.total()) {
    peak_ = peak;
    peak_event_ = event.what;
  }
  const MemoryBytes host{memory_.at_peak(Tier::host)};
  if (host.total() > host_peak_.total()) host_peak_ = host;
  memory_.reset_peak();
  event.after = MemoryBytes{memory_.at_peak()};
}

size_t Watch::begin(std::string_view row, std::string span, Args args) {
  look();
  const size_t number = next_++;
  if (row.ends_with(" host") || row.ends_with(" disk")) return number;  // copies between tiers
  if (row == kWait) {
    // For the first call of this name that is still in flight. Nothing is computed meanwhile if no event has begun.
    const auto waited = std::ranges::find_if(open_, [&](const Open& open) { return open.call && open.name == span; });
    if (waited != open_.end() && waited->num_events == events_.size())
      waited->call->exposed_bytes = waited->call->bytes;
    return number;
  }
  if (row == kCompute) {
    const int64_t micro_batch = number_of(args, "micro_batch");
    // The units of a pass are events already.
    const bool is_pass = number_of(args, "stage") >= 0;
    if (is_pass) return number;
    events_.push_back({.what = micro_batch < 0 ? span : fmt::format("{} of micro-batch {}", span, micro_batch)});
    current_ = events_.size() - 1;
    timeline_.begin_event(events_.back().what);
    open_.push_back({.number = number,
                     .event = current_,
                     .num_events = events_.size(),
                     .call = std::nullopt,
                     .name = std::move(span)});
    return number;
  }
  SentCalls call{.axis = std::string(row.substr(0, row.find(" over "))),
                 .verb = verb_of(span),
                 .place = events_[current_].what.substr(0, events_[current_].what.find(' ')),
                 .calls = 1,
                 .bytes = static_cast<double>(number_of(args, "sent_bytes"))};
  const size_t space = span.find(' ');
  const int32_t of_timeline = timeline_.begin({.axis = call.axis,
                                               .verb = call.verb,
                                               .what = space == std::string::npos ? "" : span.substr(space + 1),
                                               .sent_bytes = call.bytes,
                                               .peer = static_cast<int>(number_of(args, "peer"))});
  open_.push_back({.number = number,
                   .event = current_,
                   .num_events = events_.size(),
                   .call = std::move(call),
                   .name = std::move(span),
                   .of_timeline = of_timeline});
  return number;
}

void Watch::end(size_t number) noexcept {
  look();
  const auto found = std::ranges::find(open_, number, &Open::number);
  if (found == open_.end()) return;
  if (found->call) {
    caravan::add(sums_, *found->call);
    timeline_.end(found->of_timeline);
    open_.erase(found);
    return;
  }
  open_.erase(found);
  const auto inner = std::ranges::find_if(open_.rbegin(), open_.rend(), [](const Open& open) { return !open.call; });
  if (inner == open_.rend()) return;
  current_ = inner->event;
  timeline_.return_to(static_cast<int32_t>(current_));
}

void Watch::finish(Rehearsal& rehearsal) {
  look();
  rehearsal.events = events_;
  rehearsal.peak = peak_;
  rehearsal.peak_event = peak_event_;
  rehearsal.between_steps = events_[current_].after;
  rehearsal.sent = values(sums_);
}

}  // namespace

void Rehearsal::Moved::add(const MemoryCounter::Moved& before, const MemoryCounter::Moved& after, double times) {
  to_host += times * static_cast<double>(after.to_host - before.to_host);
  from_host += times * static_cast<double>(after.from_host - before.from_host);
  to_disk += times * static_cast<double>(after.to_disk - before.to_disk);
  from_disk += times * static_cast<double>(after.from_disk - before.from_disk);
}

double Rehearsal::bytes_sent() const noexcept {
  double bytes = 0;
  for (const SentCalls& calls : sent) bytes += calls.bytes;
  return bytes;
}

double Rehearsal::bytes_sent(const std::string& axis) const noexcept {
  double bytes = 0;
  for (const SentCalls& calls : sent) bytes += calls.axis == axis ? calls.bytes : 0;
  return bytes;
}

void to_meta(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto take = [](const at::Tensor& tensor) {
    const at::Tensor meta = at::empty_like(tensor, at::kMeta);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
  };
  for (const at::Tensor& parameter : module.parameters()) take(parameter);
  for (const at::Tensor& buffer : module.buffers()) take(buffer);
}

Rehearsal rehearse(const RehearsedWorld& world, const std::function<RehearsedSteps(const Mesh&)>& make) {
  // Blocks that a library caches may outlive the rehearsal, and a counter outlives its blocks.
  auto* memory = new MemoryCounter;
  const MemoryScope charges(*memory);
  const HeldBlocksScope held;
  const auto watch = std::make_shared<Watch>(*memory);
  Rehearsal rehearsal{.rank = world.rank};
  int64_t size = 1;
  for (const AxisSize& axis : world.axes) size *= axis.size;
  {
    const TraceScope trace(watch);
    const KernelLogScope kernels(watch.get());
    const TorchKernelScope operators;
    const RecordOptions options{
        .ranks_per_host = world.ranks_per_host,
        .on_split = [&](const std::string& axis,
                        const std::vector<int>& ranks) { rehearsal.ranks_of_axis[axis] = ranks; },
        .numbers = world.numbers};
    std::vector<int>& all = rehearsal.ranks_of_axis["world"];
    for (int rank = 0; rank < static_cast<int>(size); ++rank) all.push_back(rank);
    const Mesh mesh = Mesh::create(make_record_world(world.rank, static_cast<int>(size), options), world.axes);
    const RehearsedSteps steps = make(mesh);
    rehearsal.chunks = steps.chunks;
    watch->restart("start");
    steps.step();
    watch->restart("start");
    MemoryCounter::Moved before = memory->moved();
    steps.step();
    MemoryCounter::Moved after = memory->moved();
    const auto add_whole = [&rehearsal, first = before, last = after](double times) {
      rehearsal.moved.add(first, last, times);
    };
    add_whole(1);
    watch->finish(rehearsal);
    rehearsal.timeline = watch->timeline();
    rehearsal.num_steps = steps.num_steps;
    rehearsal.held_bytes = held.peak_bytes();
    rehearsal.host = watch->host_peak();
    rehearsal.disk_bytes = memory->live_bytes(Tier::disk);
    const Sums whole = watch->sums();
    Sums sums = whole;
    for (const RehearsedSteps::Shorter& shorter : steps.shorter) {
      if (shorter.is_run_twice) shorter.run();
      watch->restart("start");
      before = memory->moved();
      shorter.run();
      after = memory->moved();
      add_whole(shorter.times);
      rehearsal.moved.add(before, after, -shorter.times);
      rehearsal.shorter.push_back({watch->timeline(), shorter.times});
      for (const auto& [key, one] : whole) add(sums, one, shorter.times);
      for (const auto& [key, one] : watch->sums()) add(sums, one, -shorter.times);
    }
    rehearsal.sent = values(sums);
    for (double* number :
         {&rehearsal.moved.to_host, &rehearsal.moved.from_host, &rehearsal.moved.to_disk, &rehearsal.moved.from_disk}) {
      *number /= steps.num_steps;
    }
    for (SentCalls& calls : rehearsal.sent) {
      for (double* number : {&calls.calls, &calls.bytes, &calls.exposed_bytes}) {
        *number /= steps.num_steps;
      }
    }
  }
  return rehearsal;
}

}  // namespace caravan
