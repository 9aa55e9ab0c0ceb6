#include "tests/train/tiny_run.h"

#include <regex>
#include <sstream>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "caravan/base/numeric/random.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "tests/needs.h"

namespace caravan::testing {

TinyRuns::TinyRuns() {
  const std::vector<std::string> words{"call", "me",  "Ishmael", "whale", "sea",
                                       "ship", "the", "and",     "white", "harpoon"};
  const RandomStream stream(1, "text");
  std::string text;
  for (uint64_t i = 0; i < 900; ++i) text += words[stream.bits(i) % words.size()] + (i % 11 == 10 ? ".\n" : " ");
  write_file(folder_ / "text.txt", text);
}

Recipe TinyRuns::recipe(Architecture kind, const std::string& dir, const std::vector<std::string>& set) const {
  std::vector<std::string> all{
      "model.kind=" + std::string(kind.name),
      "model.layers=2",
      "model.width=16",
      "model.heads=4",
      "model.context=8",
      "model.dropout=0.1",
      kind == Architecture::llama() ? "model.kv_heads=2" : "model.kv_heads=0",
      kind == Architecture::llama() ? "model.tie_embeddings=false" : "model.tie_embeddings=true",
      "data.text=text.txt",
      "data.tokenizer=bytes",
      "train.steps=20",
      "train.global_batch=36",
      "train.seed=3",
      "train.eval_every=0",
      "optimizer.lr=0.01",
      "optimizer.warmup_steps=2",
      "checkpoint.every=0",
      "checkpoint.dir=\"" + (folder_ / dir).string() + "\"",
      "sample.tokens=0",
      "data_parallel.bucket_bytes=4096"};
  all.insert(all.end(), set.begin(), set.end());
  needs_chosen(set);
  return parse_recipe("", "test", all);
}

namespace {

std::vector<nlohmann::ordered_json> log_of(const std::filesystem::path& run) {
  std::istringstream text(read_file(run / "train.log"));
  std::vector<nlohmann::ordered_json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::ordered_json::parse(line));
  return lines;
}

}  // namespace

std::vector<std::string> together(const std::vector<std::vector<std::string>>& parts) {
  std::vector<std::string> all;
  for (const std::vector<std::string>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<std::string> number_lines(const std::filesystem::path& run) {
  static const std::regex others("\"(bytes_sent|state_bytes|predicted_memory_bytes)\":[0-9]+,|\"bubble\":[^\\]]*\\],");
  std::vector<std::string> lines;
  for (const std::string& line : log_lines(run)) lines.push_back(std::regex_replace(line, others, ""));
  return lines;
}

std::vector<std::string> log_lines(const std::filesystem::path& run) {
  std::vector<std::string> lines;
  for (nlohmann::ordered_json line : log_of(run)) {
    for (const char* key : {"step_ms", "tokens_per_second", "comm_ms", "peak_memory_bytes", "predicted_resident_bytes",
                            "model_flops_per_second", "time"}) {
      EXPECT_EQ(line.erase(key), line.contains("resumed") ? 0U : 1U) << key;
    }
    line.erase("tiers");
    line.erase("save_ms");  // of steps after a checkpoint
    line.erase("slowdown");
    line.erase("predicted");  // of the first step of each part of a run
    lines.push_back(line.dump());
  }
  return lines;
}

std::vector<double> losses(const std::filesystem::path& run) {
  std::vector<double> all;
  for (const auto& line : log_of(run)) {
    if (line.contains("loss")) all.push_back(line["loss"].get<double>());
  }
  return all;
}

std::map<std::string, at::Tensor> checkpoint_tensors(const std::filesystem::path& run) {
  CheckpointReader reader(find_checkpoint(run));
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    EXPECT_EQ(tensor.dtype, "F32") << name;
    at::Tensor out = at::empty(tensor.shape);
    reader.read(name, {std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}, out);
    all[name] = out;
  }
  return all;
}

std::pair<double, std::string> distance(const std::map<std::string, at::Tensor>& a,
                                        const std::map<std::string, at::Tensor>& b) {
  double largest = 0;
  for (const auto& [name, tensor] : b) largest = std::max(largest, tensor.abs().max().item<double>());
  std::pair<double, std::string> worst{0, ""};
  for (const auto& [name, tensor] : b) {
    const at::Tensor want = tensor.to(at::kDouble);
    const double apart = (a.at(name).to(at::kDouble) - want).norm().item<double>() /
                         (want.norm().item<double>() + 1e-6 * largest * std::sqrt(static_cast<double>(want.numel())));
    if (!(apart <= worst.first)) worst = {apart, name};
  }
  return worst;
}

std::string first_difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  for (const auto& [name, tensor] : b) {
    if (!a.contains(name) || !at::equal(a.at(name), tensor)) return name;
  }
  return a.size() == b.size() ? "" : "the number of tensors";
}

std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, entry] : file.tensors()) all[name] = read_tensor(file, name);
  return all;
}

}  // namespace caravan::testing
