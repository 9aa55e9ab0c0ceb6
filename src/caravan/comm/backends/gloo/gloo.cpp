// The only file that includes c10d's header of gloo. See Note [stubs of gloo's headers].
#include "caravan/comm/backends/gloo/gloo.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "caravan/base/error.h"
#include "caravan/base/system/broken_pipe.h"
#include "caravan/comm/backends/gloo/fact.h"
#include "caravan/comm/backends/messages/message_communicator.h"
#include "caravan/comm/store/c10d_store.h"
#include "caravan/comm/store/startup.h"
#include "caravan/comm/store/wire/errors.h"
#include "caravan/comm/store/wire/host_address.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;

// Our waits have their own time-outs. A time-out of gloo's would close the connections of the whole world.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

/// Returns what `call` does; rethrows gloo's exceptions without their noise.
template <class Call>
std::invoke_result_t<Call> plainly(const Call& call) {
  try {
    return call();
  } catch (const std::exception& exception) {
    throw std::runtime_error(gloo::plain_fact(exception.what()));
  }
}

class GlooTransfer final : public messages::Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool wait() override {
    return plainly([&] { return work_->wait(kForever); });
  }
  void interrupt() noexcept override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooTransport final : public messages::Transport {
 public:
  explicit GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  std::unique_ptr<messages::Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) override {
    std::vector<at::Tensor> tensors{bytes_of(const_cast<std::byte*>(data), bytes)};  // gloo only reads it
    return std::make_unique<GlooTransfer>(plainly([&] { return group_->send(tensors, world_rank, tag); }));
  }
  std::unique_ptr<messages::Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) override {
    std::vector<at::Tensor> tensors{bytes_of(data, bytes)};
    return std::make_unique<GlooTransfer>(plainly([&] { return group_->recv(tensors, world_rank, tag); }));
  }

 private:
  static at::Tensor bytes_of(std::byte* data, size_t bytes) {
    return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

std::shared_ptr<messages::Transport> connect_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                                   milliseconds timeout) {
  const std::string address = own_address(info);
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    options->threads = 1;  // run c10d's collectives, which are not used
    return std::make_shared<GlooTransport>(c10::make_intrusive<c10d::ProcessGroupGloo>(
        as_c10d_store(prefixed(store, "c10d"), timeout), info.rank, info.world_size, std::move(options)));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& exception) {
    throw CommError({.op = "gloo",
                     .subject = "world",
                     .fact = fmt::format("cannot connect the ranks: {}", exception.what()),
                     .where = fmt::format("rank {} of {}, at {}", info.rank, info.world_size, address),
                     .action = "check that the hosts can connect to each other on any TCP port"});
  }
}

}  // namespace

std::shared_ptr<Communicator> make_gloo_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options) {
  const NoBrokenPipeSignal no_signal;  // gloo's thread starts here and inherits the mask
  std::shared_ptr<messages::Transport> transport;
  std::shared_ptr<Store> own;
  if (info.world_size > 1) {
    own = next_world_store("gloo", info, store);
    const milliseconds timeout = startup_timeout(options);
    wait_for_ranks("gloo", info, *own, timeout);
    transport = connect_world(info, own, timeout);
  }
  return messages::MessageCommunicator::make_world(std::make_shared<messages::MessageEngine>(
      "gloo", std::move(transport), std::move(own), info.rank, info.world_size, options));
}

std::shared_ptr<Store> connect_agent_store(const RankInfo& info, milliseconds timeout) {
  const std::string where = fmt::format("store of torchrun's agent at {}:{}", info.master_addr, info.master_port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.useLibUV = false;  // only for servers, but a build without libuv refuses the default
  c10::intrusive_ptr<c10d::TCPStore> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
  } catch (const std::exception& exception) {
    throw CommError(
        {.op = "store",
         .subject = where,
         .fact = fmt::format("no answer within {} s: {}", static_cast<double>(timeout.count()) / 1e3, exception.what()),
         .action = "check that torchrun still runs, MASTER_ADDR and MASTER_PORT"});
  }
  // The agent keeps its store when it restarts the ranks, so each attempt has its own keys.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return prefixed(wrap_c10d_store(std::move(store), where),
                  fmt::format("caravan/attempt {}", attempt != nullptr ? attempt : "0"));
}

}  // namespace caravan
