// What optimizers of one's own keep for whole parameters, in tensors of any shape.
#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/attached_tensors.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/session/attachments.h"
#include "caravan/session/cuts.h"
#include "caravan/session/state_visitors.h"

namespace caravan {
namespace {

bool is_none(const at::Tensor& state) { return !state.defined() || state.numel() == 0; }

/// "F32 [3, 3]".
std::string kind_of_state(const at::Tensor& state) {
  if (is_none(state)) return kNoState;
  return fmt::format("{} [{}]", safetensors_name(to_dtype(state.scalar_type())), join(state.sizes()));
}

/// The layout of a state: all rows of it where its parameter is.
Layout layout_as(const Parameter& parameter) {
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : parameter.sharded_layout().entries()) {
    const Shard on_owner{.dim = 0, .owner = std::max(placement.owner(), 0)};
    entries.emplace_back(axis, placement.is_shard() ? Placement(on_owner) : placement);
  }
  return Layout(std::move(entries));
}

}  // namespace

std::string part_as_state(const std::string& part) {
  const size_t begin = part.find('.') + 1;  // names of entries have none
  for (const char* form : {kScalarState, kNoState}) {
    const std::string start = fmt::format("{}.", form);
    if (begin > 0 && part.substr(begin).starts_with(start)) {
      return fmt::format("{}{}.{}", part.substr(0, begin), kState, part.substr(begin + start.size()));
    }
  }
  return part;
}

std::string Attachments::name_of(const State& state, const char* form) const {
  return fmt::format("{}{}.{}.{}", kAttachedTensors, entries_[state.entry].name, form, state.part);
}

void Attachments::check_states_whole(const std::string& name, const Kept& kept) const {
  if (whole_ != nullptr) return;
  StateChecker checker(parameters_, name, [&](const std::string& state, const Parameter& parameter) {
    const auto cut = cut_of(engine_, parameter);
    if (!cut) return;
    throw UsageError({"attach", fmt::format("{}, {} of {}", name, state, cut->name),
                      fmt::format("is visited by state(), which needs {} whole, and it is sharded over {} by {}",
                                  cut->name, cut->axis, engine_.strategy().name),
                      engine_.mesh().where(),
                      "make the optimizer from whole_parameters() and step it in update_whole(), or use ddp()"});
  });
  kept.visit_(checker);
}

/// On a rank that holds it, or of the shape [0, ..].
void Attachments::add_state(const State& state, const char* form, const at::Tensor& tensor,
                            const std::vector<int64_t>& shape) {
  const Parameter& parameter = *parameters_[state.parameter];
  auto own = std::make_shared<Parameter>(name_of(state, form), ParameterSpec{.shape = shape});
  own->set_sharded(tensor, layout_as(parameter));
  pieces_.push_back({name_of(state, form), state.entry, tensor, own.get(), own, /*is_state=*/true});
}

void Attachments::take_states(const std::list<StateCollector>& collectors) {
  Communicator& world = engine_.mesh().world();
  std::map<std::tuple<size_t, std::string, size_t>, at::Tensor> own;
  std::string lines;
  all_or_none(
      world,
      [&] {
        for (const StateCollector& collector : collectors) {
          const std::string& of = entries_[collector.entry].name;
          for (const auto& [name, states] : collector.states) {
            for (const auto& [index, state] : states) {
              at::Tensor& tensor = own[{collector.entry, name, index}];
              if (!is_none(state)) {
                tensor = savable(state.cpu(), fmt::format("{}, {} of {}", of, name, parameters_[index]->name()));
              }
              lines += fmt::format("{} {} {} {}\n", collector.entry, name, index, kind_of_state(tensor));
            }
          }
        }
      },
      "states");
  std::map<std::tuple<size_t, std::string, size_t>, std::pair<std::string, size_t>> all;  // what it is, on which rank
  const std::vector<std::string> texts = gather_texts(world, lines, "states");
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream of_rank(texts[rank]);
    size_t entry = 0, index = 0;
    for (std::string name, kind; of_rank >> entry >> name >> index && std::getline(of_rank >> std::ws, kind);) {
      const auto& [first, its] = all.try_emplace({entry, name, index}, kind, rank).first->second;
      if (first == kind) continue;
      throw UsageError({"checkpoint",
                        fmt::format("{}, {} of {}", entries_[entry].name, name, parameters_[index]->name()),
                        fmt::format("is {} on rank {} and {} on rank {}", first, its, kind, rank), "",
                        "keep the same state on all ranks that have the parameter"});
    }
  }
  for (const auto& [key, found] : all) {
    const auto& [entry, name, index] = key;
    const std::string part = fmt::format("{}.{}", name, parameters_[index]->whole_name());
    const State& state = states_.emplace_back(State{
        .entry = entry, .part = part, .parameter = index, .tensor = own.contains(key) ? own.at(key) : at::Tensor()});
    if (found.first == kNoState) {
      pieces_.push_back({name_of(state, kNoState), entry, at::zeros({1}, at::kByte), nullptr, nullptr, true});
    } else if (state.tensor.defined()) {
      const bool is_scalar = state.tensor.dim() == 0;
      const at::Tensor tensor = is_scalar ? state.tensor.unsqueeze(0) : state.tensor;
      add_state(state, is_scalar ? kScalarState : kState, tensor, tensor.sizes().vec());
    }
  }
}

/// Each state has one of the forms in the checkpoint, as was checked.
void Attachments::expect_states(const Manifest& manifest) {
  for (State& state : states_) {
    state.loaded = at::Tensor();
    if (const std::string none = name_of(state, kNoState); manifest.tensors.contains(none)) {
      pieces_.push_back({none, state.entry, at::empty({1}, at::kByte), nullptr, nullptr, true});
      continue;
    }
    const bool is_scalar = manifest.tensors.contains(name_of(state, kScalarState));
    const std::string name = name_of(state, is_scalar ? kScalarState : kState);
    const ManifestTensor& saved = manifest.tensors.at(name);
    std::vector<int64_t> shape = saved.shape;
    if (!is_here(*parameters_[state.parameter])) shape.at(0) = 0;
    const at::Tensor tensor = at::empty(shape, to_scalar_type(safetensors_dtype(saved.dtype, "checkpoint", name)));
    add_state(state, is_scalar ? kScalarState : kState, tensor, saved.shape);
    if (tensor.numel() == 0) continue;
    state.loaded = is_scalar ? tensor.squeeze(0) : tensor;
    if (is_none(state.tensor) || kind_of_state(state.tensor) == kind_of_state(state.loaded)) continue;
    throw DataError({"checkpoint", name.substr(std::string_view(kAttachedTensors).size()),
                     fmt::format("was saved as {}, and is {} in the program", kind_of_state(state.loaded),
                                 kind_of_state(state.tensor)),
                     engine_.mesh().where(), "make it as the program that saved it did, or leave it undefined"});
  }
}

}  // namespace caravan
