#include "caravan/engine/step_recorder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>

#include "caravan/comm/calls/agree.h"

namespace caravan {
namespace {

/// Kind, unit and micro-batch of each event, as bytes.
std::string to_bytes(const Schedule& events) {
  std::string bytes;
  for (const Action& event : events) {
    const std::array<int, 3> numbers{static_cast<int>(event.kind), event.unit, event.micro_batch};
    bytes.append(reinterpret_cast<const char*>(numbers.data()), sizeof(numbers));
  }
  return bytes;
}

Schedule to_events(const std::string& bytes) {
  Schedule events;
  std::array<int, 3> numbers{};
  for (size_t at = 0; at < bytes.size(); at += sizeof(numbers)) {
    std::memcpy(numbers.data(), bytes.data() + at, sizeof(numbers));
    events.push_back({.kind = static_cast<Action::Kind>(numbers[0]), .unit = numbers[1], .micro_batch = numbers[2]});
  }
  return events;
}

}  // namespace

int StepRecorder::num_backwards() const {
  std::map<int, int> of_unit;
  int most = 0;
  for (const Action& event : events_) {
    if (event.kind == Action::Kind::backward) most = std::max(most, ++of_unit[event.unit]);
  }
  return most;
}

void StepRecorder::share(Communicator& world, const Attendance& attendance) {
  const std::string events = broadcast_text(world, to_bytes(events_), attendance.first_rank, "events");
  if (!attendance.is_here) events_ = to_events(events);
}

}  // namespace caravan
