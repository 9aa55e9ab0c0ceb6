#pragma once

#include <chrono>
#include <memory>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace transport

}  // namespace gloo
