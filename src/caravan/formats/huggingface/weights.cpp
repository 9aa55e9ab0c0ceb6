#include "caravan/formats/huggingface/weights.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/system/mapped_pages.h"
#include "caravan/formats/huggingface/hf_folder.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/module/finite.h"
#include "caravan/redistribute/piece.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// Bytes of fp32 values that are converted at a time: reading takes at most twice as much, for pages and a copy.
constexpr int64_t kBytesAtOnce = 2 << 20;
constexpr size_t kHashedBytes = 256;

const char* const kEmbedding = "embedding.token.weight";

}  // namespace

HuggingfaceWeights::HuggingfaceWeights(const fs::path& folder, const ModelConfig& config, bool may_lack_head)
    : folder_(folder), shapes_(our_shapes(config)), table_(huggingface_table(config, shapes_)) {
  NamedShapes all;
  std::map<std::string, size_t> file_of;
  for (const std::string& name : weight_files(folder)) {
    files_.emplace_back(folder / name);
    for (const auto& [tensor, entry] : files_.back().tensors()) {
      all.emplace_back(tensor, entry.shape);
      file_of[tensor] = files_.size() - 1;
    }
  }
  const HuggingfaceNames names = find_parameters(config, table_, shapes_, all, may_lack_head);
  for (const auto& [name, of_file] : names.of_file) places_[name] = {file_of.at(of_file), of_file};
  if (!names.tied_head.empty()) {
    tied_head_ = table_.head;
    places_[tied_head_] = {file_of.at(names.tied_head), names.tied_head};
    const bool fits = files_[places_[tied_head_].file].at(names.tied_head).shape == shapes_.at(kEmbedding);
    if (!fits) refuse_tied_head(tied_head_);
  }
  for (size_t i = 0; i < table_.rows.size(); ++i) {
    const std::vector<std::string>& ours = table_.rows[i].ours;
    for (size_t part = 0; part < ours.size(); ++part) of_ours_[ours[part]] = {i, part};
  }
}

bool HuggingfaceWeights::has(const std::string& name) const {
  const HuggingfaceRow& row = table_.rows[of_ours_.at(name).first];
  return std::ranges::all_of(row.theirs, [&](const std::string& theirs) { return places_.contains(theirs); });
}

at::Tensor HuggingfaceWeights::take(const Place& place, const Box& box) {
  at::Tensor values = read_tensor(files_[place.file], place.name, box);
  bytes_read_ += static_cast<int64_t>(values.nbytes());
  return values;
}

/// `box`: of the parameter; its rows are those of the range.
void HuggingfaceWeights::fill(const std::string& name, const TheirRows& range, const Box& box, const at::Tensor& out) {
  const HuggingfaceRow& row = table_.rows[of_ours_.at(name).first];
  const bool is_transposed = row.is_transposed(box.size.size());
  Box theirs = box;
  theirs.offset.front() = range.begin;
  if (is_transposed) {
    std::swap(theirs.offset[0], theirs.offset[1]);
    std::swap(theirs.size[0], theirs.size[1]);
  }
  theirs.offset.front() += row.unused_rows;
  const at::Tensor values = take(places_.at(row.theirs[range.tensor]), theirs);
  out.copy_(is_transposed ? values.t() : values);
  if (row.offset != 0) out.add_(row.offset);
  if (!all_finite(out)) {
    refuse_import(folder_, name + " has values that are not finite", "use weights of a training that has not diverged");
  }
  if (name == kEmbedding && !tied_head_.empty()) check_tied_head(theirs, out);
}

void HuggingfaceWeights::check_tied_head(const Box& theirs, const at::Tensor& embedding) {
  if (at::equal(take(places_.at(tied_head_), theirs).to(embedding.scalar_type()), embedding)) return;
  refuse_tied_head(tied_head_);
}

void HuggingfaceWeights::read(const std::string& name, const Box& box, const at::Tensor& out) {
  if (out.numel() == 0) return;
  const auto [index, part] = of_ours_.at(name);
  const HuggingfaceRow& row = table_.rows[index];
  const std::vector<int64_t>& shape = shapes_.at(name);
  // Of whole rows: a part of each row takes the pages of all of it.
  const int64_t row_bytes = 4 * c10::multiply_integers(shape.begin() + 1, shape.end());
  const int64_t most_rows = std::max<int64_t>(kBytesAtOnce / row_bytes, 1);
  for (const TheirRows& range : ranges_of(row, shapes_, part, box.offset.front(), box.size.front())) {
    for (int64_t done = 0; done < range.rows; done += most_rows) {
      const TheirRows some{range.tensor, range.begin + done, range.to + done, std::min(most_rows, range.rows - done)};
      Box rows = box;
      rows.size.front() = some.rows;
      fill(name, some, rows, out.narrow(0, some.to, some.rows));
    }
  }
}

void HuggingfaceWeights::read(const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out) {
  if (out.numel() == 0) return;
  for (const PieceBox& box : boxes) read(name, box.global, part_of(out, box));
}

at::Tensor HuggingfaceWeights::read(const std::string& name) {
  const std::vector<int64_t>& shape = shapes_.at(name);
  at::Tensor whole = at::empty(shape, at::kFloat);
  read(name, Box{std::vector<int64_t>(shape.size(), 0), shape}, whole);
  return whole;
}

ContentHash HuggingfaceWeights::fingerprint() const {
  ContentHasher hasher;
  for (const SafetensorsFile& file : files_) {
    hasher.update(file.path().filename().string());
    hasher.update(static_cast<uint64_t>(file.size_bytes()));
    hasher.update(file.header_text());
    for (const auto& [name, entry] : file.tensors()) {
      const std::span<const std::byte> bytes = file.bytes(name);
      hasher.update(bytes.first(std::min(bytes.size(), kHashedBytes)));
      drop_mapped_pages(bytes);  // the system maps the pages around those that are read, too
    }
  }
  return hasher.value();
}

}  // namespace caravan
