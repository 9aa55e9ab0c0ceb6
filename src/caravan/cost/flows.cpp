#include "caravan/cost/flows.h"

#include <algorithm>
#include <utility>

namespace caravan {

Flows::Flow& Flows::push(const std::string& channel, Transfer transfer) {
  const double seconds = transfer.seconds;
  return open_.emplace_back(
      Flow{.number = num_added_++, .channel = channel_of(channel), .transfer = std::move(transfer), .left = seconds});
}

size_t Flows::add(const std::string& channel, Transfer transfer) { return push(channel, std::move(transfer)).number; }

Flows::Interval Flows::add_fixed(const std::string& channel, Transfer transfer) {
  Flow& flow = push(channel, std::move(transfer));
  Flows undisturbed = *this;
  const Interval interval = undisturbed.finish(flow.number);
  flow.fixed = interval.end;
  return interval;
}

double Flows::is_free(const std::string& channel) const {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return now_;
  const auto last = std::ranges::find(open_.rbegin(), open_.rend(), found->second, &Flow::channel);
  if (last == open_.rend()) return now_;
  if (last->fixed < kNever) return last->fixed;
  Flows undisturbed = *this;
  return undisturbed.finish(last->number).end;
}

bool Flows::is_running() const { return std::ranges::any_of(open_, &Flow::runs); }

/// Begins those whose turn it is, and says when those that run end.
void Flows::start_ready() {
  std::vector<bool> is_taken(channels_.size(), false);
  std::vector<double> loads;
  for (Flow& flow : open_) {
    const bool is_first = !is_taken[flow.channel];
    is_taken[flow.channel] = true;
    if (!is_first || flow.transfer.ready > now_) continue;
    flow.begin = std::min(flow.begin, now_);
    const std::vector<double>& own = flow.transfer.loads;
    loads.resize(std::max(loads.size(), own.size()), 0.0);
    for (size_t level = 0; level < own.size(); ++level) loads[level] += own[level];
  }
  for (Flow& flow : open_) {
    if (!flow.runs()) continue;
    double slower = 1;
    for (size_t level = 0; level < flow.transfer.loads.size(); ++level) {
      if (flow.transfer.loads[level] > 0) slower = std::max(slower, loads[level]);
    }
    flow.end = std::min(flow.fixed, now_ + flow.left * slower);
  }
}

void Flows::step(double limit) {
  start_ready();
  double next = limit;
  for (const Flow& flow : open_) {
    const double change = flow.runs() ? flow.end : flow.transfer.ready;
    if (flow.runs() || change > now_) next = std::min(next, change);
  }
  for (Flow& flow : open_) {
    if (!flow.runs()) continue;
    if (flow.end > next) flow.left *= (flow.end - next) / (flow.end - now_);
    // Nobody asks for the end of one that was fixed: it was known when it began.
    if (flow.end <= next && flow.fixed == kNever) through_[flow.number] = {flow.begin, flow.end};
  }
  std::erase_if(open_, [next](const Flow& flow) { return flow.runs() && flow.end <= next; });
  now_ = next;
}

void Flows::run_until(double time) {
  while (now_ < time && !open_.empty()) step(time);
  now_ = std::max(now_, time);
}

Flows::Interval Flows::finish(size_t number) {
  while (!through_.contains(number)) step(kNever);
  return through_.extract(number).mapped();
}

double Flows::compute(double begin, double seconds, double slowdown) {
  run_until(begin);
  while (!open_.empty()) {
    start_ready();
    const double slower = is_running() ? 1 + slowdown : 1, before = now_, end = before + seconds * slower;
    step(end);
    if (now_ >= end) return end;
    seconds = std::max(0.0, seconds - (now_ - before) / slower);
  }
  return std::max(now_, begin) + seconds;
}

}  // namespace caravan
