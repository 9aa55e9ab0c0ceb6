#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/checkpoint/checkpoint.h"
#include "caravan/comm/record.h"
#include "tests/checkpoint/pieces.h"
#include "tests/data/support.h"

namespace caravan::testing::damaged_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

/// A valid checkpoint of two ranks, which each test damages: "w" [6, 4] in two pieces of rows, "v" [5] in one piece.
class Damaged : public ::testing::Test {
 protected:
  Damaged() {
    on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
      save_checkpoint(
          run_.path(), {.step = 5, .model = "{}"},
          {piece_of("w", saved_.at("w"), {{"dp", Shard{0}}}, mesh), piece_of("v", saved_.at("v"), {}, mesh)},
          mesh.world(), 0);
    });
  }

  void read() const {
    CheckpointReader reader(folder_);
    reader.verify(*make_record_world(0, 1));
    reader.check(names_and_shapes(saved_));
  }

  json manifest() const { return json::parse(read_file(folder_ / "manifest.json")); }
  /// Writes a manifest with a correct hash.
  void write(json manifest) const {
    manifest.erase("hash");
    manifest["hash"] = content_hash(manifest.dump()).hex();
    write_file(folder_ / "manifest.json", manifest.dump());
  }

  /// The error after a change to the manifest.
  std::string refusal(const std::function<void(json&)>& change) const {
    const json sound = manifest();
    json changed = sound;
    change(changed);
    write(changed);
    const std::string message = message_of<DataError>([&] { read(); });
    write(sound);
    return message;
  }

  TemporaryFolder run_;
  fs::path folder_ = run_ / "step_000005";
  const Whole saved_{{"w", at::arange(24, at::kFloat).view({6, 4})}, {"v", at::arange(5, at::kFloat)}};
};

TEST_F(Damaged, IsSoundBefore) {
  read();
  write(manifest());
  read();
}

TEST_F(Damaged, ATruncatedShardIsNamed) {
  for (const int64_t bytes : {0, 1, 100}) {
    fs::resize_file(folder_ / "rank_00001.safetensors", static_cast<uintmax_t>(bytes));
    EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("rank_00001.safetensors"));
  }
  fs::remove(folder_ / "rank_00001.safetensors");
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("cannot be found"));
}

TEST_F(Damaged, AnyAlteredByteOfAShardIsFound) {
  const fs::path shard = folder_ / "rank_00000.safetensors";
  const std::string sound = read_file(shard);
  for (size_t i = 0; i < sound.size(); i += 7) {
    std::string altered = sound;
    altered[i] = static_cast<char>(altered[i] ^ 4);
    write_file(shard, altered);
    EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("altered")) << "byte " << i;
  }
}

/// One rank reads it, all of them refuse it; check() alone reads no tensor.
TEST_F(Damaged, AnAlteredShardIsTheSameErrorOnEveryRank) {
  for (const char* name : {"rank_00000.safetensors", "rank_00001.safetensors"}) {
    const std::string sound = read_file(folder_ / name);
    std::string altered = sound;
    altered.back() = static_cast<char>(altered.back() ^ 1);
    write_file(folder_ / name, altered);
    for (const int ranks : {1, 2, 3}) {
      std::vector<std::string> messages(static_cast<size_t>(ranks));
      on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
        CheckpointReader reader(folder_);
        reader.check(names_and_shapes(saved_));
        messages[mesh.rank()] = message_of<DataError>([&] { reader.verify(mesh.world()); });
      });
      EXPECT_THAT(messages.front(), HasSubstr(std::string(name) + ": does not have the hash that was written"));
      EXPECT_THAT(messages, ::testing::Each(messages.front()));
    }
    write_file(folder_ / name, sound);
  }
}

/// A rank opens only the shards that it needs a part of.
TEST_F(Damaged, ShardsThatHoldOtherRowsAreNotRead) {
  CheckpointReader reader(folder_);
  fs::remove(folder_ / "rank_00001.safetensors");
  at::Tensor rows = at::zeros({3, 4});
  reader.read("w", {{0, 0}, {3, 4}}, rows);
  EXPECT_TRUE(at::equal(rows, saved_.at("w").narrow(0, 0, 3)));
  EXPECT_THAT(message_of<DataError>([&] {
                reader.read("w", {{1, 0}, {3, 4}}, rows);
              }),
              HasSubstr("rank_00001.safetensors"));
}

TEST_F(Damaged, AnyAlteredByteOfTheManifestIsFound) {
  const fs::path path = folder_ / "manifest.json";
  const std::string sound = read_file(path);
  for (size_t i = 0; i < sound.size(); ++i) {
    if (sound[i] == ' ' || sound[i] == '\n') continue;
    std::string altered = sound;
    altered[i] = altered[i] == '1' ? '2' : '1';
    write_file(path, altered);
    EXPECT_NE(message_of<DataError>([&] { read(); }), "") << "byte " << i;
  }
  for (const size_t length : {size_t{0}, size_t{1}, sound.size() / 2, sound.size() - 2}) {
    write_file(path, sound.substr(0, length));
    EXPECT_NE(message_of<DataError>([&] { read(); }), "") << "length " << length;
  }
}

/// Written before manifests knew the data and the numerics of a run.
TEST_F(Damaged, AManifestOfTheFirstVersionIsRead) {
  json first = manifest();
  first["version"] = 1;
  first.erase("data");
  first.erase("numerics");
  write(first);
  read();
  EXPECT_EQ(CheckpointReader(folder_).info().train_hash, "");
  EXPECT_EQ(CheckpointReader(folder_).info().numerics, Numerics{});
}

TEST_F(Damaged, AManifestOfNestedBracketsIsRefused) {
  write_file(folder_ / "manifest.json", std::string(400'000, '[') + std::string(400'000, ']'));
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("manifest.json: nests arrays and objects more than"));
}

TEST_F(Damaged, HostileNumbersAreRefusedBeforeAnythingIsAllocated) {
  const int64_t huge = int64_t{1} << 62;
  const auto piece = [](json& root, int i) -> json& { return root["tensors"]["w"]["pieces"][i]; };
  const std::vector<std::pair<std::string, std::function<void(json&)>>> changes{
      {"w has an impossible shape",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {huge, 4};
       }},
      {"24 elements, but its shape has 18014398509481984",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {int64_t{1} << 48, 64};
       }},
      {"w has pieces of 24 elements, but its shape has 28",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {7, 4};
       }},
      {"w has pieces that overlap",
       [&](json& root) {
         piece(root, 1)["offset"] = {2, 0};
       }},
      {"w has pieces that overlap", [&](json& root) { root["tensors"]["w"]["pieces"].push_back(piece(root, 0)); }},
      {"w has a piece outside its shape",
       [&](json& root) {
         piece(root, 1)["offset"] = {4, 0};
       }},
      {"w has a piece outside its shape",
       [&](json& root) {
         piece(root, 1)["offset"] = {INT64_MAX, 0};
       }},
      {"w has a piece outside its shape",
       [&](json& root) {
         piece(root, 1)["size"] = {INT64_MAX, 4};
       }},
      {"w has a piece with a different number of dims", [&](json& root) { piece(root, 1)["size"] = {12}; }},
      {"w is not a whole number",
       [&](json& root) {
         piece(root, 1)["offset"] = {-3, 0};
       }},
      {"w is not a whole number",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {6.5, 4};
       }},
      {"w is not a whole number",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {UINT64_MAX, 4};
       }},
      {"step is not a whole number", [&](json& root) { root["step"] = -1; }},
      {"position is not a whole number", [&](json& root) { root["position"] = 1e300; }},
      {"counters is not an object", [&](json& root) { root["counters"] = json::array({3}); }},
      {"counters.epoch is not a whole number",
       [&](json& root) {
         root["counters"] = {{"epoch", 1.5}};
       }},
      {"version is 3", [&](json& root) { root["version"] = 3; }},
      {"version is 0", [&](json& root) { root["version"] = 0; }},
      {"has no 'version'", [&](json& root) { root.erase("version"); }},
      {"unknown key 'data'", [&](json& root) { root["version"] = 1; }},
      {"has no 'numerics'", [&](json& root) { root.erase("numerics"); }},
      {"data.train is not a string", [&](json& root) { root["data"]["train"] = 1; }},
      {"numerics.threads_per_rank is not a whole", [&](json& root) { root["numerics"]["threads_per_rank"] = -1; }},
      {"w is not a plain file name", [&](json& root) { piece(root, 1)["file"] = "../rank_00001.safetensors"; }},
      {"w is not a plain file name", [&](json& root) { piece(root, 1)["file"] = "/etc/passwd"; }},
      {"w is not a plain file name", [&](json& root) { piece(root, 1)["file"] = ".."; }},
      {"w is not a plain file name", [&](json& root) { piece(root, 1)["file"] = ""; }},
      {"files is not a plain file name",
       [&](json& root) {
         root["files"]["../x"] = {{"bytes", 1}, {"hash", ""}};
       }},
      {"is in a file that is not listed", [&](json& root) { piece(root, 1)["file"] = "other.safetensors"; }},
      {"cannot be found",
       [&](json& root) {
         root["files"]["gone"] = {{"bytes", 1}, {"hash", ""}};
       }},
      {"bytes, but 9 were written", [&](json& root) { root["files"]["rank_00000.safetensors"]["bytes"] = 9; }},
      {"does not have the hash", [&](json& root) { root["files"]["rank_00000.safetensors"]["hash"] = "00"; }},
      {"unknown key 'more'", [&](json& root) { root["more"] = 1; }},
      {"unknown key 'more'", [&](json& root) { piece(root, 0)["more"] = 1; }},
      {"has no 'recipe'", [&](json& root) { root.erase("recipe"); }},
      {"recipe is not a string", [&](json& root) { root["recipe"] = 3; }},
      {"files, tensors are not objects", [&](json& root) { root["tensors"] = json::array(); }},
      {"w is not a list", [&](json& root) { root["tensors"]["w"]["shape"] = "6"; }},
      {"but the manifest says F64", [&](json& root) { root["tensors"]["w"]["dtype"] = "F64"; }},
      {"zzz", [&](json& root) { piece(root, 0)["key"] = "zzz"; }},
  };
  for (const auto& [fact, change] : changes) EXPECT_THAT(refusal(change), HasSubstr(fact));
}

/// A manifest may be consistent but describe more than its files hold. check() finds that before the caller allocates.
TEST_F(Damaged, AShapeThatTheShardsDoNotHoldIsRefused) {
  json root = manifest();
  const int64_t rows = int64_t{1} << 50;
  root["tensors"]["v"] = {
      {"shape", {rows}},
      {"dtype", "F32"},
      {"pieces", {{{"offset", {0}}, {"size", {rows}}, {"file", "rank_00000.safetensors"}, {"key", "w"}}}}};
  write(root);
  CheckpointReader reader(folder_);
  EXPECT_THAT(message_of<DataError>([&] { reader.check({{"w", {6, 4}}, {"v", {rows}}}); }), HasSubstr("manifest says"));
}

}  // namespace
}  // namespace caravan::testing::damaged_test
