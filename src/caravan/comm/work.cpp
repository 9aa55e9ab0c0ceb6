#include "caravan/comm/work.h"

#include <utility>

#include "caravan/comm/communicator.h"
#include "caravan/comm/flight.h"

namespace caravan {

void Operation::set_complete(std::exception_ptr failure) noexcept {
  complete = true;
  if (flight != nullptr) flight->end(flight_number, failure == nullptr ? FlightState::done : FlightState::failed);
  error = std::move(failure);
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
