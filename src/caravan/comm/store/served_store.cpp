#include "caravan/comm/store/served_store.h"

#include <chrono>
#include <exception>
#include <thread>

namespace caravan {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShutdownTimeout{1000};
constexpr milliseconds kShutdownPoll{5};
constexpr const char* kEnded = "store/ended";

class ServedStore final : public Store {
 public:
  ServedStore(std::unique_ptr<StoreServer> server, std::shared_ptr<Store> client, int world_size)
      : server_(std::move(server)), client_(std::move(client)), world_size_(world_size) {}
  ~ServedStore() override {
    try {
      int64_t ended = client_->add(kEnded, 1);
      if (server_ == nullptr) return;
      const auto deadline = std::chrono::steady_clock::now() + kShutdownTimeout;
      while (ended < world_size_ && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kShutdownPoll);
        ended = client_->add(kEnded, 0);
      }
    } catch (const std::exception&) {  // rank 0 has ended
    }
  }
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;

  void set(std::string_view key, std::string_view value) override { client_->set(key, value); }
  std::string get(std::string_view key, milliseconds timeout) override { return client_->get(key, timeout); }
  bool has(std::string_view key) override { return client_->has(key); }
  int64_t add(std::string_view key, int64_t amount) override { return client_->add(key, amount); }
  void remove(std::string_view key) override { client_->remove(key); }
  bool has_disconnected(int rank) override { return client_->has_disconnected(rank); }

 private:
  std::unique_ptr<StoreServer> server_;  // on rank 0
  std::shared_ptr<Store> client_;
  int world_size_;
};

}  // namespace

std::shared_ptr<Store> make_served_store(std::unique_ptr<StoreServer> server, std::shared_ptr<Store> client,
                                         int world_size) {
  return std::make_shared<ServedStore>(std::move(server), std::move(client), world_size);
}

}  // namespace caravan
