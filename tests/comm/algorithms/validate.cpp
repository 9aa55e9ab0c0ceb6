#include "tests/comm/algorithms/validate.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::algorithms {
namespace {

/// The symbolic value of an element of a rank's working buffer: the sum of the inputs of these (rank, element).
using Element = std::set<std::pair<int, int64_t>>;

class Validation {
 public:
  Validation(std::span<const Problem> problems, std::span<const MessagePlan> plans)
      : problems_(problems), plans_(plans), buffers_(problems.size()) {
    for (const Problem& problem : problems_) {
      const Range input = frame_of(problem).input;
      for (int64_t i = input.begin; i < input.end(); ++i) buffers_[at(problem.rank)][i] = {{problem.rank, i}};
    }
  }

  void run() {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      if (plans_[rank].steps.size() != plans_[0].steps.size() ||
          plans_[rank].num_partial_steps != plans_[0].num_partial_steps) {
        refuse(static_cast<int>(rank), {}, "another number of steps than rank 0");
      }
    }
    for (step_ = 0; step_ < plans_[0].steps.size(); ++step_) take_step();
    for (const Problem& problem : problems_) check_result(problem);
  }

 private:
  using WorkingBuffer = std::map<int64_t, Element>;
  struct Message {
    Range range;
    std::vector<Element> elements;
  };

  static size_t at(int64_t index) { return static_cast<size_t>(index); }

  [[noreturn]] void refuse(int rank, Range range, const std::string& fact) const {
    throw InternalError(
        {.op = "plan",
         .subject = std::string(name(problems_[0].verb)),
         .fact = fmt::format("step {}, rank {}, elements [{},{}): {}", step_, rank, range.begin, range.end(), fact),
         .where = to_string(plans_)});
  }

  bool is_partial_step() const { return step_ < plans_[0].num_partial_steps; }
  bool is_unfinished(const Element& element) const { return element.size() > 1 && element.size() < problems_.size(); }

  Message read(int rank, Range range) const {
    Message message{range, {}};
    const WorkingBuffer& buffer = buffers_[at(rank)];
    for (int64_t i = range.begin; i < range.end(); ++i) {
      const auto found = buffer.find(i);
      if (found == buffer.end()) refuse(rank, range, "are sent and not there");
      if (!is_partial_step() && is_unfinished(found->second)) refuse(rank, range, "travel unfinished and rounded");
      message.elements.push_back(found->second);
    }
    return message;
  }

  void take_step() {
    std::map<std::pair<int, int>, std::vector<Message>> messages;  // by sender and receiver, in order
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (const Move& move : plans_[rank].steps[step_].sends) {
        const int from = static_cast<int>(rank);
        if (move.range.count < 1) refuse(from, move.range, "is an empty message");
        messages[{from, move.peer}].push_back(read(from, move.range));
      }
    }
    for (size_t rank = 0; rank < plans_.size(); ++rank) receive(static_cast<int>(rank), messages);
    for (const auto& [pair, rest] : messages) {
      if (!rest.empty()) refuse(pair.first, rest[0].range, fmt::format("are not received by rank {}", pair.second));
    }
  }

  void receive(int rank, std::map<std::pair<int, int>, std::vector<Message>>& messages) {
    const Step& step = plans_[at(rank)].steps[step_];
    check_overlaps(rank, step);
    for (const Move& move : step.recvs) {
      auto& queue = messages[{move.peer, rank}];
      if (queue.empty()) refuse(rank, move.range, fmt::format("are not sent by rank {}", move.peer));
      const Message message = std::move(queue.front());
      queue.erase(queue.begin());
      const bool fits =
          problems_[0].verb == Verb::all_to_all ? message.range.count == move.range.count : message.range == move.range;
      if (!fits) {
        refuse(rank, move.range,
               fmt::format("rank {} sends [{},{})", move.peer, message.range.begin, message.range.end()));
      }
      for (int64_t i = 0; i < move.range.count; ++i) store(rank, move, move.range.begin + i, message.elements[at(i)]);
    }
    for (const Move& move : step.recvs) {
      if (!move.adds || is_partial_step()) continue;
      for (int64_t i = move.range.begin; i < move.range.end(); ++i) {
        if (is_unfinished(buffers_[at(rank)][i])) refuse(rank, move.range, "are rounded before their sum is complete");
      }
    }
  }

  void store(int rank, const Move& move, int64_t index, const Element& element) {
    WorkingBuffer& buffer = buffers_[at(rank)];
    if (!move.adds) {
      buffer[index] = element;
      return;
    }
    if (!buffer.contains(index)) refuse(rank, move.range, "are added to nothing");
    for (const auto& contribution : element) {
      if (!buffer[index].insert(contribution).second) {
        refuse(rank, move.range, fmt::format("get the input of rank {} twice", contribution.first));
      }
    }
  }

  void check_overlaps(int rank, const Step& step) const {
    const auto overlap = [](Range a, Range b) { return a.begin < b.end() && b.begin < a.end(); };
    for (size_t i = 0; i < step.recvs.size(); ++i) {
      const Move& move = step.recvs[i];
      for (const Move& sent : step.sends) {
        if (!move.adds && overlap(move.range, sent.range)) refuse(rank, move.range, "are sent and overwritten");
      }
      for (size_t j = 0; j < i; ++j) {
        const Move& other = step.recvs[j];
        const bool both_add_the_same = move.adds && other.adds && move.range == other.range;
        if (overlap(move.range, other.range) && !both_add_the_same) refuse(rank, move.range, "are received twice");
      }
    }
  }

  /// The expected value at `index` of the rank's result.
  Element expected(const Problem& problem, int64_t index) const {
    Element element;
    const int n = problem.size;
    switch (problem.verb) {
      case Verb::broadcast: return {{problem.root, index}};
      case Verb::all_gather:
        for (int rank = 0; rank < n; ++rank) {
          const Range part = Parts(problem.parts)[rank];
          if (index >= part.begin && index < part.end()) element.insert({rank, index});
        }
        return element;
      case Verb::all_to_all:
        for (int from = 0; from < n; ++from) {
          const Problem& sender = problems_[at(from)];
          const Range place = Parts(problem.recv_counts)[from];
          const Range source = Parts(sender.send_counts)[problem.rank];
          if (index < place.begin || index >= place.end()) continue;
          element.insert({from, frame_of(sender).input.begin + source.begin + index - place.begin});
        }
        return element;
      default:
        for (int rank = 0; rank < n; ++rank) element.insert({rank, index});
        return element;
    }
  }

  void check_result(const Problem& problem) const {
    const Range result = frame_of(problem).result;
    const WorkingBuffer& buffer = buffers_[at(problem.rank)];
    for (int64_t i = result.begin; i < result.end(); ++i) {
      const auto found = buffer.find(i);
      if (found == buffer.end()) refuse(problem.rank, {i, 1}, "are missing in the end");
      if (found->second != expected(problem, i)) refuse(problem.rank, {i, 1}, "are not the result in the end");
    }
  }

  std::span<const Problem> problems_;
  std::span<const MessagePlan> plans_;
  std::vector<WorkingBuffer> buffers_;  // of each rank
  size_t step_ = 0;
};

}  // namespace

void validate(std::span<const Problem> problems, std::span<const MessagePlan> plans) {
  if (problems.empty() || problems.size() != plans.size()) {
    throw InternalError({.op = "plan", .fact = fmt::format("{} problems for {} plans", problems.size(), plans.size())});
  }
  Validation(problems, plans).run();
}

}  // namespace caravan::algorithms
