#include "tests/command/command.h"

#include <fstream>
#include <netinet/in.h>
#include <sstream>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

#include "caravan/formats/safetensors/safetensors.h"
#include "tests/needs.h"

namespace caravan {

namespace fs = std::filesystem;

namespace {

constexpr size_t kTextBytes = 30'000;

std::string make_folder() {
  std::string name = (fs::temp_directory_path() / "caravan_command_XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
  return name;
}

/// What the words choose, and what they leave out: see tests/main.cpp.
void need(const std::vector<std::string>& words) {
  testing::needs({"no_hook", "no_recompute"});
  testing::needs_chosen(words);
}

}  // namespace

std::vector<std::string> set(const std::vector<std::string>& overrides) {
  std::vector<std::string> words;
  for (const std::string& one : overrides) words.insert(words.end(), {"--set", one});
  return words;
}

CommandTest::CommandTest() : folder_(make_folder()) {
  file("text.txt", text_of(fs::path(CARAVAN_SOURCE_DIR) / "data/moby_dick.txt").substr(0, kTextBytes));
}

CommandTest::~CommandTest() {
  std::error_code error;
  fs::remove_all(folder_, error);
}

std::string CommandTest::program() { return CARAVAN_COMMAND; }

Child::Options CommandTest::options() const {
  return {.environment = {"CARAVAN_HOME=" CARAVAN_SOURCE_DIR, "CARAVAN_CACHE=" + path("cache")}, .patience_s = 120};
}

std::string CommandTest::file(const std::string& name, const std::string& text) const {
  std::ofstream(path(name), std::ios::binary) << text;
  return path(name);
}

CommandTest::Result CommandTest::run(const Words& command, const std::string& input) const {
  need(command);
  Child::Options with_input = options();
  with_input.input = input;
  Child child(command, with_input);
  Result result{.code = child.wait(), .out = child.out(), .err = child.err()};
  EXPECT_TRUE(child.all_gone(5)) << "it left processes behind";
  return result;
}

CommandTest::Result CommandTest::caravan(const Words& arguments, const std::string& input) const {
  Words command{program()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(command, input);
}

std::unique_ptr<Child> CommandTest::start(const Words& arguments) const {
  need(arguments);
  Words command{program()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<Child>(command, options());
}

int CommandTest::free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool is_bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket);
  if (!is_bound) ADD_FAILURE() << "no free port";
  return ntohs(address.sin_port);
}

std::unique_ptr<Child> CommandTest::start_rank(const Words& arguments, size_t rank, size_t num_ranks, int port) const {
  need(arguments);
  Words command{program()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Child::Options own = options();
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                                                      {"LOCAL_RANK", std::to_string(rank)},
                                                                      {"WORLD_SIZE", std::to_string(num_ranks)},
                                                                      {"LOCAL_WORLD_SIZE", std::to_string(num_ranks)},
                                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                                      {"MASTER_PORT", std::to_string(port)}}) {
    own.environment.push_back(name + "=" + value);
  }
  return std::make_unique<Child>(command, own);
}

std::vector<CommandTest::Result> CommandTest::by_hand(const std::vector<Words>& ranks) const {
  const int port = free_port();
  std::vector<std::unique_ptr<Child>> children;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    children.push_back(start_rank(ranks[rank], rank, ranks.size(), port));
  }
  std::vector<Result> results;
  for (const auto& child : children) {
    const int code = child->wait();
    results.push_back({.code = code, .out = child->out(), .err = child->err()});
  }
  return results;
}

CommandTest::Words CommandTest::tiny(const std::string& name, int ranks, const Words& more) const {
  Words words{"train", "--ranks", std::to_string(ranks)};
  const Words overrides =
      set({"data.tokenizer=bytes", "data.text=" + path("text.txt"), "model.layers=2", "model.width=64", "model.heads=2",
           "model.context=32", "train.steps=6", "train.global_batch=12", "train.log_every=1", "checkpoint.keep=0",
           "sample.tokens=0", "comm.threads_per_rank=1", "checkpoint.dir=" + path(name)});
  words.insert(words.end(), overrides.begin(), overrides.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<nlohmann::json> CommandTest::log(const std::string& name) const {
  std::vector<nlohmann::json> lines;
  std::istringstream text(text_of(folder_ / name / "train.log"));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line, nullptr, false));
  return lines;
}

std::map<std::string, std::string> CommandTest::tensors(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile shard(entry.path());
    for (const auto& [name, unused] : shard.tensors()) {
      const auto bytes = shard.bytes(name);
      EXPECT_TRUE(all.emplace(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())).second)
          << name << " is there twice";
    }
  }
  EXPECT_FALSE(all.empty()) << folder;
  return all;
}

std::string CommandTest::text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

pid_t CommandTest::rank_process(const Child& child, int rank) {
  const std::string variable = '\0' + ("LOCAL_RANK=" + std::to_string(rank)) + '\0';
  for (const pid_t pid : child.living()) {
    if (text_of("/proc/" + std::to_string(pid) + "/environ").find(variable) != std::string::npos) return pid;
  }
  // Not -1: kill(-1, ..) would end every process of this user.
  throw std::runtime_error("no process is rank " + std::to_string(rank));
}

CommandTest::Words CommandTest::with_own_mounts(const std::string& script) {
  // The last one for a chroot: its root is not a mount point that could be made private.
  for (const Words& unshare :
       {Words{"unshare", "-m"}, Words{"unshare", "-Urm"}, Words{"unshare", "-m", "--propagation", "unchanged"}}) {
    Words words = unshare;
    words.insert(words.end(), {"mount", "-t", "tmpfs", "none", "/mnt"});
    if (Child(words).wait() != 0) continue;
    words = unshare;
    words.insert(words.end(), {"sh", "-c", script});
    return words;
  }
  ADD_FAILURE() << "neither 'unshare -m' nor 'unshare -Urm' may mount here: run it as root, or allow user namespaces";
  return {"false"};
}

}  // namespace caravan
