#include "caravan/comm/work.h"

#include <thread>
#include <utility>

#include "caravan/base/numeric/half.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/flight.h"

namespace caravan {
namespace {

/// Multiplies floating-point elements in host memory; leaves integers unchanged.
void multiply(const Buffer& buffer, double factor) noexcept {
  if (buffer.data == nullptr || buffer.device.kind != DeviceKind::cpu) return;
  const auto each = [&](auto tag, const auto& product) {
    auto* element = static_cast<decltype(tag)*>(buffer.data);
    for (int64_t i = 0; i < buffer.count; ++i) element[i] = product(element[i]);
  };
  const auto narrow = [&](auto value) { return static_cast<float>(to_float(value) * factor); };
  switch (buffer.dtype) {
    case Dtype::fp32: return each(float{}, [&](float x) { return static_cast<float>(x * factor); });
    case Dtype::fp64: return each(double{}, [&](double x) { return x * factor; });
    case Dtype::bf16: return each(Bf16{}, [&](Bf16 x) { return to_bf16(narrow(x)); });
    case Dtype::fp16: return each(Fp16{}, [&](Fp16 x) { return to_fp16(narrow(x)); });
    default: return;
  }
}

}  // namespace

void Operation::take_path(std::string_view path) {
  const bool is_real = dtype == Dtype::fp32 || dtype == Dtype::fp64 || dtype == Dtype::bf16 || dtype == Dtype::fp16;
  if (is_real) {
    planted *= caravan::take_path(path);
  } else {
    count_path(path);
  }
}

void Operation::set_complete(std::exception_ptr failure) noexcept {
  complete = true;
  if (planted != 1 && failure == nullptr) multiply(out, planted);
  if (flight != nullptr) flight->end(flight_number, failure == nullptr ? FlightState::done : FlightState::failed);
  if (trace != nullptr) trace->end(trace_span);
  error = std::move(failure);
  trace.reset();
  keep_alive.reset();
  backend_state.reset();
}

Work::Work(std::shared_ptr<Operation> operation, Communicator* communicator)
    : operation_(std::move(operation)), communicator_(communicator) {}

void Work::wait() {
  if (operation_ == nullptr) return;
  if (!operation_->complete) communicator_->wait(*operation_);
  if (operation_->error != nullptr) std::rethrow_exception(operation_->error);
}

bool Work::wait_for(std::chrono::milliseconds timeout) {
  constexpr int kPolls = 1000;  // takes some microseconds to a millisecond; after that the thread sleeps between polls
  constexpr std::chrono::microseconds kPause{50};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int polls = 0; !done(); ++polls) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    if (polls >= kPolls) std::this_thread::sleep_for(kPause);
  }
  wait();
  return true;
}

std::exception_ptr Work::error() const noexcept { return operation_ == nullptr ? nullptr : operation_->error; }

bool Work::done() {
  if (operation_ == nullptr) return true;
  if (!operation_->complete) communicator_->progress();
  return operation_->complete;
}

void Work::keep(std::shared_ptr<void> object) {
  if (operation_ == nullptr || operation_->complete) return;
  if (operation_->keep_alive == nullptr) {
    operation_->keep_alive = std::move(object);
    return;
  }
  using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  operation_->keep_alive = std::make_shared<Both>(std::move(operation_->keep_alive), std::move(object));
}

}  // namespace caravan
