#include "caravan/session/kept.h"

#include <cstring>
#include <memory>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

namespace caravan {
namespace {

at::Tensor bytes_of_text(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_in(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

void* first_parameter(torch::optim::LBFGS& optimizer) {
  return optimizer.param_groups().at(0).params().at(0).unsafeGetTensorImpl();
}

}  // namespace

at::Tensor Kept::tensor_of(int64_t number) { return at::full({1}, number, at::kLong); }
at::Tensor Kept::tensor_of(double number) { return at::full({1}, number, at::kDouble); }

Kept::Kept(std::string& text) : Kept([&text] { return text; }, [&text](const std::string& saved) { text = saved; }) {}

Kept::Kept(at::Tensor& tensor) : kind_(Kind::tensor) {
  save_ = [&tensor] { return tensor; };
  load_ = [&tensor](const at::Tensor& saved) {
    const at::NoGradGuard no_grad;
    tensor.copy_(saved);
  };
}

Kept::Kept(const at::Generator& generator) : kind_(Kind::generator) {
  save_ = [generator] { return generator.get_state(); };
  load_ = [generator](const at::Tensor& saved) {
    at::Generator own = generator;  // the same generator
    own.set_state(saved);
  };
}

Kept::Kept(std::function<std::string()> save, std::function<void(const std::string& text)> load) : kind_(Kind::text) {
  save_ = [save = std::move(save)] { return bytes_of_text(save()); };
  load_ = [load = std::move(load)](const at::Tensor& saved) { load(text_in(saved)); };
}

/// All that it keeps lies at its first parameter.
Kept::Kept(torch::optim::LBFGS& optimizer)
    : Kept(
          [&optimizer] {
            const auto found = optimizer.state().find(first_parameter(optimizer));
            if (found == optimizer.state().end()) return std::string();
            const auto copy = found->second->clone();
            // Scratch of a step, with tensors that are undefined, which no archive takes.
            static_cast<torch::optim::LBFGSParamState&>(*copy).al(std::nullopt);
            return text_of_archive([&](auto& archive) { copy->serialize(archive); });
          },
          [&optimizer](const std::string& text) {
            void* const key = first_parameter(optimizer);
            optimizer.state().erase(key);
            if (text.empty()) return;
            auto state = std::make_unique<torch::optim::LBFGSParamState>();
            read_archive(text, [&](auto& archive) { state->serialize(archive); });
            optimizer.state()[key] = std::move(state);
          }) {
  is_elementwise_ = false;
}

std::string Kept::text_of_archive(const std::function<void(torch::serialize::OutputArchive&)>& write) {
  torch::serialize::OutputArchive archive;
  write(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void Kept::read_archive(const std::string& text, const std::function<void(torch::serialize::InputArchive&)>& read) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(text);
  archive.load_from(stream);
  read(archive);
}

}  // namespace caravan
