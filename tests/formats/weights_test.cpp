// HuggingfaceWeights: pieces of parameters from the files of a folder.
#include "caravan/formats/huggingface/weights.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/redistribute/piece.h"
#include "tests/data/support.h"
#include "tests/formats/small_models.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::weights_test {
namespace {

using ::testing::HasSubstr;

/// Six heads in pairs, so that fused weights have groups; four experts.
ModelConfig small_model(const ArchitectureRow& row) {
  return testing::small_model(row,
                              {.layers = 2, .width = 48, .heads = 6, .context = 8, .vocabulary = 40, .hidden = 20});
}

NamedTensors values_of(const ModelConfig& config) {
  NamedTensors values;
  const auto model = whole_model(config);
  uint64_t seed = 0;
  for (const Parameter* parameter : model->parameters()) {
    values.emplace_back(parameter->name(), normal(parameter->global_shape(), ++seed));
  }
  return values;
}

/// Boxes that cut the first dim, the last, or both: halves that no group of a fused weight ends with.
std::vector<Box> boxes_of(const at::Tensor& whole) {
  const std::vector<int64_t> shape = whole.sizes().vec();
  std::vector<Box> boxes{{std::vector<int64_t>(shape.size(), 0), shape}};
  for (const size_t dim : {size_t{0}, shape.size() - 1}) {
    Box box = boxes.back();
    box.offset[dim] = shape[dim] / 3;
    box.size[dim] = shape[dim] / 2;
    boxes.push_back(box);
    if (shape.size() == 1) break;
  }
  return boxes;
}

TEST(HuggingfaceWeights, AnyPieceOfAnyArchitectureReadsItsBytesAlone) {
  for (const ArchitectureRow& row : architectures()) {
    const ModelConfig config = small_model(row);
    const NamedTensors ours = values_of(config);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const TemporaryFolder folder;
      NamedTensors theirs = to_huggingface(config, ours);
      for (auto& [name, tensor] : theirs) tensor = tensor.to(dtype);
      write_tensors(folder / "model.safetensors", theirs);
      for (auto& [name, tensor] : theirs) tensor = tensor.to(at::kFloat);
      HuggingfaceWeights weights(folder.path(), config);
      for (const auto& [name, whole] : from_huggingface(config, theirs)) {
        SCOPED_TRACE(row.name + " " + name);
        for (const Box& box : boxes_of(whole)) {
          const int64_t before = weights.bytes_read();
          at::Tensor piece = at::full(box.size, 7.0);
          weights.read(name, box, piece);
          EXPECT_TRUE(at::equal(piece, piece_of(whole, box)));
          EXPECT_EQ(weights.bytes_read() - before, piece.numel() * static_cast<int64_t>(c10::elementSize(dtype)));
        }
      }
    }
  }
}

TEST(HuggingfaceWeights, BlockedPiecesAndPartsOfLargeTensors) {
  ModelConfig config = small_model(*find_architecture("llama"));
  config.vocabulary = 50'000;  // more than is converted at once
  const TemporaryFolder folder;
  NamedTensors ours = values_of(config);
  write_tensors(folder / "model.safetensors", to_huggingface(config, ours));
  HuggingfaceWeights weights(folder.path(), config);
  const at::Tensor& embedding = ours.front().second;
  ASSERT_EQ(ours.front().first, "embedding.token.weight");
  EXPECT_TRUE(at::equal(weights.read("embedding.token.weight"), embedding));
  const std::vector<PieceBox> boxes{{{{10, 0}, {45'000, 48}}, {0, 0}}, {{{3, 0}, {5, 48}}, {45'000, 0}}};
  at::Tensor piece = at::zeros({45'005, 48});
  weights.read("embedding.token.weight", boxes, piece);
  EXPECT_TRUE(at::equal(piece, piece_of(embedding, boxes)));
}

TEST(HuggingfaceWeights, ValuesOutsideOfAPieceDoNotMatter) {
  const ModelConfig config = small_model(*find_architecture("gpt2"));
  const TemporaryFolder folder;
  NamedTensors ours = values_of(config);
  for (auto& [name, tensor] : ours) {
    if (name == "blocks.0.attention.output.weight") tensor.narrow(1, 24, 24).fill_(std::nan(""));
  }
  write_tensors(folder / "model.safetensors", to_huggingface(config, ours));
  HuggingfaceWeights weights(folder.path(), config);
  const std::string name = "blocks.0.attention.output.weight";
  EXPECT_NO_THROW(weights.read(name, Box{{0, 0}, {48, 24}}, at::empty({48, 24})));
  EXPECT_THAT(message_of<DataError>([&] { weights.read(name); }), HasSubstr(name + " has values that are not finite"));
}

TEST(HuggingfaceWeights, ATiedHeadThatDiffersIsSeenInThePieceThatItDiffersIn) {
  ModelConfig config = small_model(*find_architecture("llama"));
  config.tie_embeddings = true;
  const TemporaryFolder folder;
  const NamedTensors ours = values_of(config);
  NamedTensors theirs = to_huggingface(config, ours);
  at::Tensor head = ours.front().second.clone();
  head[30].fill_(1);
  theirs.emplace_back("lm_head.weight", head);
  write_tensors(folder / "model.safetensors", theirs);
  HuggingfaceWeights weights(folder.path(), config);
  EXPECT_NO_THROW(weights.read("embedding.token.weight", Box{{0, 0}, {20, 48}}, at::empty({20, 48})));
  EXPECT_THAT(message_of<DataError>([&] {
                weights.read("embedding.token.weight", Box{{20, 0}, {20, 48}}, at::empty({20, 48}));
              }),
              HasSubstr("differs from the embedding"));
  theirs.back().second = head.narrow(0, 0, 39);
  write_tensors(folder / "model.safetensors", theirs);
  EXPECT_THAT(message_of<DataError>([&] { HuggingfaceWeights(folder.path(), config); }),
              HasSubstr("differs from the embedding"));
}

TEST(HuggingfaceWeights, HeadersAloneTellWhatIsWrong) {
  const ModelConfig config = small_model(*find_architecture("llama"));
  const TemporaryFolder folder;
  NamedTensors theirs = to_huggingface(config, values_of(config));
  const auto refusal = [&] { return message_of<DataError>([&] { HuggingfaceWeights(folder.path(), config); }); };
  write_file(folder / "model.safetensors.index.json", R"({"weight_map": {"a": "one", "b": "two"}})");
  write_tensors(folder / "one", theirs);
  EXPECT_THAT(refusal(), HasSubstr("in two, which is not there"));
  write_tensors(folder / "two", {theirs[2]});
  EXPECT_THAT(refusal(), HasSubstr("1 unexpected: " + theirs[2].first)) << "it is in both";
  write_tensors(folder / "two", {});
  EXPECT_NO_THROW(HuggingfaceWeights(folder.path(), config));
  write_tensors(folder / "one", NamedTensors(theirs.begin() + 1, theirs.end()));
  EXPECT_THAT(refusal(), HasSubstr("1 missing: " + theirs[0].first));
  theirs[0].second = at::zeros({3, 3});
  write_tensors(folder / "one", theirs);
  EXPECT_THAT(refusal(), HasSubstr(theirs[0].first + " is [3, 3], not [40, 48]"));
}

TEST(HuggingfaceWeights, TheFingerprintSeesOtherWeightsAndOtherNames) {
  const ModelConfig config = small_model(*find_architecture("llama"));
  const TemporaryFolder folder;
  NamedTensors theirs = to_huggingface(config, values_of(config));
  const auto fingerprint = [&] {
    write_tensors(folder / "model.safetensors", theirs);
    return HuggingfaceWeights(folder.path(), config).fingerprint();
  };
  const ContentHash first = fingerprint();
  EXPECT_EQ(fingerprint(), first);
  theirs[4].second.view(-1)[0] += 1;
  const ContentHash second = fingerprint();
  EXPECT_NE(second, first);
  theirs[3].second = theirs[3].second.to(at::kDouble);
  EXPECT_NE(fingerprint(), second);
}

}  // namespace
}  // namespace caravan::testing::weights_test
