#include "caravan/techniques/server/step_control.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

namespace caravan {

namespace {

using Answer = WorkerClocks::Answer;

}  // namespace

void StepControl::begin(const std::vector<int64_t>& clocks, int64_t staleness, int64_t drain_at) {
  clocks_.clear();
  questions_.clear();
  own_.reset();
  is_asking_ = false;
  if (comm_.rank() != 0) return;
  clocks_.emplace_back(clocks, staleness, drain_at);
  questions_.resize(clocks.size());
  for (int worker = 1; worker < comm_.size(); ++worker) receive(worker);
}

void StepControl::receive(int worker) {
  Question& question = questions_[static_cast<size_t>(worker)];
  question.numbers = at::empty({2}, at::kLong);
  question.received = recv_async(comm_, question.numbers, worker, "question of a worker");
  question.is_open = true;
}

void StepControl::ask(int64_t clock, bool wants_drain) {
  if (comm_.rank() == 0) {
    clocks_.front().ask(0, clock, wants_drain);
    return send_answers();
  }
  answer_ = at::empty({1}, at::kLong);
  answered_ = recv_async(comm_, answer_, 0, "answer to a worker");
  is_asking_ = true;
  send_async(comm_, at::tensor({clock, int64_t{wants_drain}}, at::kLong), 0, "question of a worker");
}

std::optional<Answer> StepControl::answer() {
  if (comm_.rank() == 0) return std::exchange(own_, std::nullopt);
  if (!is_asking_ || !answered_.done()) return std::nullopt;
  answered_.wait();
  is_asking_ = false;
  return static_cast<Answer>(answer_.item<int64_t>());
}

bool StepControl::poll() {
  bool has_come = false;
  for (size_t worker = 1; worker < questions_.size(); ++worker) {
    Question& question = questions_[worker];
    if (!question.is_open || !question.received.done()) continue;
    question.received.wait();
    question.is_open = false;
    has_come = true;
    const auto* numbers = question.numbers.const_data_ptr<int64_t>();
    clocks_.front().ask(static_cast<int>(worker), numbers[0], numbers[1] != 0);
  }
  if (has_come) send_answers();
  return has_come;
}

void StepControl::send_answers() {
  for (const auto& [worker, answer] : clocks_.front().take_answers()) {
    if (worker == 0) {
      own_ = answer;
      continue;
    }
    if (answer == Answer::go) receive(worker);  // no request follows a drain
    send_async(comm_, at::tensor({static_cast<int64_t>(answer)}, at::kLong), worker, "answer to a worker");
  }
}

}  // namespace caravan
