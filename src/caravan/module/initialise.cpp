#include "caravan/module/initialise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/runs.h"
#include "caravan/redistribute/piece.h"

namespace caravan {
namespace {

constexpr int64_t kChunk = 4096;  ///< numbers drawn at a time when they are not written in place

void fill_normal(at::Tensor& piece, const RandomStream& stream, const Parameter& parameter, const Box& box) {
  const auto std_deviation = static_cast<float>(parameter.spec().init.std);
  const bool in_place = piece.scalar_type() == at::kFloat;
  auto flat = piece.view({-1});
  auto* data = in_place ? flat.data_ptr<float>() : nullptr;
  parallel_for(0, piece.numel(), int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    std::array<float, kChunk> chunk;
    const auto draw = [&](uint64_t first, std::span<float> out) {
      stream.normal(first, out);
      for (float& x : out) x *= std_deviation;
    };
    for_each_run(parameter.whole_shape(), box.offset, box.size, begin, end,
                 [&](int64_t global, int64_t local, int64_t length) {
                   for (int64_t done = 0; done < length; done += kChunk) {
                     const int64_t count = std::min(kChunk, length - done);
                     const auto first = static_cast<uint64_t>(global + done);
                     if (in_place) {
                       draw(first, {data + local + done, static_cast<size_t>(count)});
                     } else {
                       draw(first, std::span(chunk).first(static_cast<size_t>(count)));
                       flat.narrow(0, local + done, count).copy_(at::from_blob(chunk.data(), {count}));
                     }
                   }
                 });
  });
}

/// "blocks.0.query.lora.magnitude" -> "blocks.0.query.weight"
std::string name_of_matrix(const Parameter& parameter) {
  const std::string& name = parameter.name();
  const size_t module = name.rfind('.');
  const size_t parent = module == std::string::npos || module == 0 ? module : name.rfind('.', module - 1);
  return parent == std::string::npos ? parameter.spec().init.matrix
                                     : name.substr(0, parent + 1) + parameter.spec().init.matrix;
}

void fill_row_norms(at::Tensor& piece, const Parameter& parameter, const Box& box, uint64_t seed) {
  const Init& init = parameter.spec().init;
  const RandomStream stream(seed, name_of_matrix(parameter));
  const at::Tensor norms = at::empty({box.size.front()}, at::kFloat);
  auto* data = norms.data_ptr<float>();
  parallel_for(0, norms.numel(), 16, [&](int64_t begin, int64_t end) {
    std::array<float, kChunk> chunk;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = (box.offset.front() + i) * init.columns;
      double sum = 0;
      for (int64_t done = 0; done < init.columns; done += kChunk) {
        const std::span part = std::span(chunk).first(static_cast<size_t>(std::min(kChunk, init.columns - done)));
        stream.normal(static_cast<uint64_t>(first + done), part);
        for (const float x : part) sum += static_cast<double>(x) * static_cast<double>(x);
      }
      data[i] = static_cast<float>(init.std * std::sqrt(sum));
    }
  });
  piece.copy_(norms);
}

}  // namespace

void initialise(at::Tensor& piece, const Parameter& parameter, const Box& box, uint64_t seed) {
  if (!piece.is_cpu() || !piece.is_contiguous() || piece.sizes() != at::IntArrayRef(box.size)) {
    throw InternalError(
        {"initialise", parameter.name(), "the piece is not a contiguous CPU tensor of its box", "", ""});
  }
  const at::NoGradGuard no_grad;
  const Box whole = parameter.in_whole(box);
  switch (parameter.spec().init.kind) {
    case Init::Kind::zeros: piece.fill_(0); break;
    case Init::Kind::ones: piece.fill_(1); break;
    case Init::Kind::row_norms: fill_row_norms(piece, parameter, whole, seed); break;
    case Init::Kind::normal: fill_normal(piece, RandomStream(seed, parameter.whole_name()), parameter, whole); break;
  }
}

void initialise(at::Tensor& piece, const Parameter& parameter, const std::vector<PieceBox>& boxes, uint64_t seed) {
  if (boxes.size() == 1) return initialise(piece, parameter, boxes.front().global, seed);
  const at::NoGradGuard no_grad;
  for (const PieceBox& box : boxes) {
    at::Tensor part = part_of(piece, box);
    at::Tensor values = part.is_contiguous() ? part : at::empty(part.sizes(), part.options());
    initialise(values, parameter, box.global, seed);
    if (!values.is_same(part)) part.copy_(values);
  }
}

}  // namespace caravan
