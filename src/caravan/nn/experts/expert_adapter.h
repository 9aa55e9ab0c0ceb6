#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"

namespace caravan {

/// A module with parameters that its parent computes with: it is not run.
class PartOfExperts : public Module {
 public:
  bool is_run() const noexcept final { return false; }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) final;
};

/// Low-rank additions to one table of experts (LoraConfig): rows x of expert e get scale B_e A_e x. Parameters "a"
/// [experts rank, in] and "b" [experts out, rank], split by whole experts as the table is.
class ExpertAdapter final : public PartOfExperts {
 public:
  ExpertAdapter(int64_t experts, int64_t in, int64_t out, const LoraConfig& lora);

  /// `y` plus the additions for `rows`, sorted by expert; `counts`: rows of each expert of this rank.
  at::Tensor added_to(const at::Tensor& y, const at::Tensor& rows, const std::vector<int64_t>& counts);
  /// In a dry run: a tensor with the layout of table + scale B A.
  at::Tensor recorded(const Parameter& table, const ForwardContext& context) const;

 private:
  double scale_;
  Parameter& a_;
  Parameter& b_;
};

/// Those of one layer of experts, children named after the tables: "up".
class ExpertAdapters final : public PartOfExperts {
 public:
  ExpertAdapter& add(const std::string& table, int64_t experts, int64_t in, int64_t out, const LoraConfig& lora) {
    return register_module<ExpertAdapter>(table, experts, in, out, lora);
  }
};

}  // namespace caravan
