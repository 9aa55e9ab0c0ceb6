#include "caravan/cost/simulate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/cost/flows.h"

namespace caravan {
namespace {

using Call = StepTimeline::Call;
using Moment = StepTimeline::Moment;

bool is_message(const Call& call) { return call.verb == Verb::send || call.verb == Verb::recv; }

/// A call of all simulated ranks that take part, or a message between two of them.
struct Meeting {
  size_t expected = 1;  ///< simulated ranks
  size_t begun = 0;
  double sent_bytes = 0;  ///< most of one of them
  double ready = 0;       ///< when the last of them began
  std::optional<Flows::Interval> time{};
  double of_device = 0;
};

/// Equal on the ranks that meet.
struct MeetingKey {
  std::string axis;
  std::string what;          ///< of messages
  std::array<int, 3> ranks;  ///< first, last and number: groups of an axis that differ do so in these
  int number;                ///< among those that are equal otherwise
  auto operator<=>(const MeetingKey&) const = default;
};

class Actor {
 public:
  Actor(const RankTimeline& of, const StepCosts& costs, bool keep_spans)
      : of_(of),
        costs_(costs),
        keep_spans_(keep_spans),
        slowdown_(costs.slowdown_beside_calls()),
        meetings_(of.timeline->calls.size()),
        flows_of_(of.timeline->calls.size()) {
    result_.rank = of.rank;
    result_.flops = of.timeline->flops();
    for (const KernelWork& work : of.timeline->kernels) {
      kernel_seconds_.push_back(costs.seconds(work, of.rank_of_device()));
      kernel_launches_.push_back(costs.launch_seconds(work, of.rank_of_device()));
    }
  }

  bool is_done() const noexcept { return next_ == of_.timeline->moments.size(); }
  const RankTimeline& of() const noexcept { return of_; }

  using Meetings = std::map<MeetingKey, Meeting>;
  /// Goes on until it waits for others. Returns whether it did anything.
  template <class Ranks>
  bool advance(Meetings& meetings, const Ranks& simulated);

  std::string waits_for() const {
    const Moment& moment = of_.timeline->moments[next_];
    const Call& call = of_.timeline->calls[static_cast<size_t>(moment.index)];
    return fmt::format("rank {} for {} {} over {}", of_.rank, name(call.verb), call.what, call.axis);
  }
  SimulatedStep::OfRank result() {
    close_event();
    result_.seconds = clock_;
    if (launches_ > 0) result_.exposed["launches"] = launches_;
    return std::move(result_);
  }
  std::vector<SimulatedStep::Span> spans() { return std::move(spans_); }

 private:
  /// `pair` holds them for a message.
  const std::vector<int>& ranks_of(const Call& call, std::vector<int>& pair) const {
    const auto found = of_.ranks_of_axis->find(call.axis);
    if (found == of_.ranks_of_axis->end()) {
      throw InternalError(
          {"simulate", call.axis, fmt::format("the ranks of this axis are not known to rank {}", of_.rank), "", ""});
    }
    if (!is_message(call)) return found->second;
    const int peer = found->second[static_cast<size_t>(call.peer)];
    pair = {std::min(peer, of_.rank), std::max(peer, of_.rank)};
    return pair;
  }

  /// Calls of one channel follow each other; messages have one for each peer and direction.
  static std::string channel_of(const Call& call) {
    return is_message(call) ? fmt::format("{} {} {}", call.axis, name(call.verb), call.peer) : call.axis;
  }

  void compute(const Moment& moment) {
    const KernelWork& work = of_.timeline->kernels[static_cast<size_t>(moment.index)];
    const double seconds = kernel_seconds_[static_cast<size_t>(moment.index)];
    if (work.is_on_host) {
      result_.on_host += seconds;
      return;
    }
    host_ += kernel_launches_[static_cast<size_t>(moment.index)];
    const double begin = now();
    launches_ += begin - clock_;
    clock_ = begin;
    enter(moment.event);
    clock_ = flows_.compute(begin, seconds, slowdown_);
    result_.computes += clock_ - begin;
    if (work.kind != KernelWork::Kind::memory) result_.of_products += clock_ - begin;
  }
  /// When what is launched next can begin on the device.
  double now() const noexcept { return std::max(clock_, host_); }
  void begin(Meetings& meetings, const Moment& moment, const std::vector<int>& simulated);
  void begin_alone(Meeting& meeting, const Moment& moment, const std::vector<int>& ranks);
  void begin_last(Meeting& meeting, const Call& call, const std::vector<int>& ranks);
  bool end(const Moment& moment);

  void enter(int32_t event) {
    if (!keep_spans_ || event == event_) return;
    close_event();
    event_ = event;
    event_begin_ = clock_;
  }
  void close_event() {
    if (keep_spans_ && event_ >= 0 && clock_ > event_begin_) {
      spans_.push_back({of_.rank, "compute", of_.timeline->events[static_cast<size_t>(event_)], event_begin_, clock_});
    }
    event_ = -1;
  }

  RankTimeline of_;
  const StepCosts& costs_;
  bool keep_spans_;
  double slowdown_;
  std::vector<double> kernel_seconds_, kernel_launches_;
  std::vector<Meeting*> meetings_;               // by call
  std::vector<std::optional<size_t>> flows_of_;  // by call that no other simulated rank takes part in
  Flows flows_;
  std::map<std::string, double> channel_is_free_;  // from when on, as far as others know
  std::map<std::pair<std::string, std::string>, int> numbers_;
  size_t next_ = 0;
  double clock_ = 0, host_ = 0;  // of the device and its host
  double launches_ = 0;          // seconds in which the device waits for them
  int32_t event_ = -1;
  double event_begin_ = 0;
  SimulatedStep::OfRank result_;
  std::vector<SimulatedStep::Span> spans_;
};

void Actor::begin(Meetings& meetings, const Moment& moment, const std::vector<int>& simulated) {
  const Call& call = of_.timeline->calls[static_cast<size_t>(moment.index)];
  host_ += costs_.launch_seconds(call, of_.rank_of_device());
  std::vector<int> pair;
  const std::vector<int>& ranks = ranks_of(call, pair);
  // Messages pair up by their labels, collectives by their order.
  const std::string label = is_message(call) ? call.what : "";
  const int number = numbers_[{call.axis, fmt::format("{} {}", label, call.peer)}]++;
  const std::array<int, 3> key{ranks.front(), ranks.back(), static_cast<int>(ranks.size())};
  Meeting& meeting = meetings[{call.axis, label, key, number}];
  meetings_[static_cast<size_t>(moment.index)] = &meeting;
  if (meeting.begun++ == 0) {
    meeting.expected = static_cast<size_t>(
        std::ranges::count_if(simulated, [&](int rank) { return std::ranges::binary_search(ranks, rank); }));
  }
  if (meeting.expected < 2) return begin_alone(meeting, moment, ranks);
  if (call.verb == Verb::recv) return;  // it is there when its sender says so
  meeting.sent_bytes = std::max(meeting.sent_bytes, call.sent_bytes);
  const std::string channel = channel_of(call);
  meeting.ready = std::max({meeting.ready, now(), channel_is_free_[channel], flows_.is_free(channel)});
  if (call.verb == Verb::send || meeting.begun >= meeting.expected) begin_last(meeting, call, ranks);
}

/// A call of which only this rank is simulated: it ends when the links of this rank let it.
void Actor::begin_alone(Meeting& meeting, const Moment& moment, const std::vector<int>& ranks) {
  const Call& call = of_.timeline->calls[static_cast<size_t>(moment.index)];
  StepCosts::CallTime time = costs_.seconds(call, ranks);
  if (call.verb == Verb::recv) time.loads.clear();  // links have a direction of their own for it
  meeting.of_device = time.of_device;
  const std::string channel = channel_of(call);
  flows_of_[static_cast<size_t>(moment.index)] =
      flows_.add(channel, {std::max(now(), channel_is_free_[channel]), time.seconds, std::move(time.loads)});
}

/// A call that begins because all have come.
void Actor::begin_last(Meeting& meeting, const Call& call, const std::vector<int>& ranks) {
  Call whole = call;
  whole.sent_bytes = meeting.sent_bytes;
  StepCosts::CallTime time = costs_.seconds(whole, ranks);
  meeting.of_device = time.of_device;
  meeting.time = flows_.add_fixed(channel_of(call), {meeting.ready, time.seconds, std::move(time.loads)});
}

bool Actor::end(const Moment& moment) {
  const Call& call = of_.timeline->calls[static_cast<size_t>(moment.index)];
  const Meeting& meeting = *meetings_[static_cast<size_t>(moment.index)];
  const std::optional<size_t> flow = flows_of_[static_cast<size_t>(moment.index)];
  if (!flow && !meeting.time) return false;
  const auto [begin, end] = flow ? flows_.finish(*flow) : *meeting.time;
  double& is_free = channel_is_free_[channel_of(call)];
  is_free = std::max(is_free, end);
  host_ = std::max(host_, end);
  // What the device does for a call delays its kernels, also if nobody waits for it.
  const double until = std::max(clock_ + meeting.of_device, end);
  if (until > clock_) {
    close_event();
    if (keep_spans_) spans_.push_back({of_.rank, "wait", call.axis, clock_, until});
    result_.exposed[call.axis] += until - clock_;
    clock_ = until;
  }
  if (keep_spans_)
    spans_.push_back({of_.rank, call.axis, fmt::format("{} {}", name(call.verb), call.what), begin, end});
  return true;
}

template <class Ranks>
bool Actor::advance(Meetings& meetings, const Ranks& simulated) {
  const size_t before = next_;
  const std::vector<Moment>& moments = of_.timeline->moments;
  for (; next_ < moments.size(); ++next_) {
    const Moment& moment = moments[next_];
    if (moment.kind == Moment::Kind::kernel) compute(moment);
    if (moment.kind == Moment::Kind::begin) begin(meetings, moment, simulated);
    if (moment.kind == Moment::Kind::end && !end(moment)) break;
  }
  return next_ != before;
}

}  // namespace

SimulatedStep simulate(std::span<const RankTimeline> ranks, const StepCosts& costs, bool keep_spans) {
  std::vector<Actor> actors;
  std::vector<int> simulated;
  for (const RankTimeline& rank : ranks) {
    actors.emplace_back(rank, costs, keep_spans);
    simulated.push_back(rank.rank);
  }
  Actor::Meetings meetings;
  const auto is_done = [](const Actor& actor) { return actor.is_done(); };
  for (bool goes_on = true; goes_on && !std::ranges::all_of(actors, is_done);) {
    goes_on = false;
    for (Actor& actor : actors) goes_on |= actor.advance(meetings, simulated);
  }
  std::vector<std::string> stuck;
  for (const Actor& actor : actors) {
    if (!actor.is_done()) stuck.push_back(actor.waits_for());
  }
  if (!stuck.empty()) {
    throw InternalError({"simulate", "", "ranks wait for each other: " + join(stuck, "; "), "", ""});
  }
  SimulatedStep step;
  for (Actor& actor : actors) {
    step.ranks.push_back(actor.result());
    step.seconds = std::max(step.seconds, step.ranks.back().seconds);
    for (SimulatedStep::Span& span : actor.spans()) step.spans.push_back(std::move(span));
  }
  const auto world = ranks.front().ranks_of_axis->find("world");
  if (world != ranks.front().ranks_of_axis->end()) {
    step.seconds *= 1 + costs.straggling(static_cast<int>(world->second.size()));
  }
  return step;
}

}  // namespace caravan
