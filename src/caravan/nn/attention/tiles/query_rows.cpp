#include "caravan/nn/attention/tiles/query_rows.h"

#include <limits>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/row_math.h"

namespace caravan::kernels {
namespace {

constexpr int64_t kAheadRows = 128;  ///< that are fetched into the second cache before they are read

/// Up to kRowBlock rows as fp32: where they are if they can be read so, else copied. Those beyond the last are one of
/// them. Returns how many there are.
template <bool kIsDirect, class T>
CARAVAN_INLINE int64_t rows_of_block(const HeadRows<T>& rows, int64_t first, const QueryHeads& heads, float* memory,
                                     const float** at) {
  const int64_t left = rows.count - first, count = left < kRowBlock ? left : kRowBlock;
  for (int64_t j = 0; j < kRowBlock; ++j) {
    const T* __restrict row = rows.data + (first + (j < count ? j : 0)) * rows.stride;
    // Rows are short, and several are read at once: that is more than a processor foresees.
    const auto* ahead = reinterpret_cast<const char*>(row + kAheadRows * rows.stride);
    for (int64_t i = 0; i < heads.width * static_cast<int64_t>(sizeof(T)); i += 64) {
      __builtin_prefetch(ahead + i, /*rw=*/0, /*locality=*/2);
    }
    if constexpr (kIsDirect) {
      at[j] = row;
    } else {
      float* __restrict to = memory + (j < count ? j : 0) * heads.pitch;
      at[j] = to;
      if (j >= count) continue;
      for (int64_t i = 0; i < heads.width; ++i) to[i] = load(row[i]);
      for (int64_t i = heads.width; i < heads.pitch; ++i) to[i] = 0;
    }
  }
  return count;
}

template <class T, bool kIsDirect>
struct MultiplyKeys {
  CARAVAN_INLINE void run(const QueryHeads* heads, const float* q, const HeadRows<T>* keys, float* s, int64_t s_pitch,
                          float* memory) {
    for (int64_t first = 0; first < keys->count; first += kRowBlock) {
      const float* at[kRowBlock];
      rows_of_block<kIsDirect>(*keys, first, *heads, memory, at);
      for (int64_t head = 0; head < heads->count; ++head) {
        const float* query = q + head * heads->pitch;
        Row8 sums[kRowBlock] = {};
        for (int64_t i = 0; i < heads->pitch; i += kRowStep) {
          Row8 of_query, of_key;
          load_row(query + i, of_query);
#pragma GCC unroll 8
          for (int j = 0; j < kRowBlock; ++j) {
            load_row(at[j] + i, of_key);
            add_product(of_query, of_key, sums[j]);
          }
        }
        add_lanes(sums, s + head * s_pitch + first);
      }
    }
  }
};

template <class T, bool kIsDirect>
struct AddValues {
  CARAVAN_INLINE void run(const QueryHeads* heads, const float* p, int64_t p_pitch, const HeadRows<T>* values,
                          float* sum, int64_t sum_pitch, float* memory) {
    for (int64_t first = 0; first < values->count; first += kRowBlock) {
      const float* at[kRowBlock];
      const int64_t count = rows_of_block<kIsDirect>(*values, first, *heads, memory, at);
      for (int64_t head = 0; head < heads->count; ++head) {
        const float* weights = p + head * p_pitch + first;
        float* to = sum + head * sum_pitch;
        int64_t i = 0;
        for (; i + 8 * kRowStep <= heads->pitch; i += 8 * kRowStep) add<8>(weights, at, count, i, to);
        for (; i + 4 * kRowStep <= heads->pitch; i += 4 * kRowStep) add<4>(weights, at, count, i, to);
        for (; i < heads->pitch; i += kRowStep) add<1>(weights, at, count, i, to);
      }
    }
  }

  /// Vectors [i, i + kVectors) of the sum.
  template <int kVectors>
  CARAVAN_INLINE void add(const float* weights, const float* const* rows, int64_t count, int64_t i, float* to) {
    Row8 sums[kVectors], of_row;
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) load_row(to + i + k * kRowStep, sums[k]);
    for (int64_t j = 0; j < count; ++j) {
      const Row8 weight = weights[j] - Row8{};
#pragma GCC unroll 8
      for (int k = 0; k < kVectors; ++k) {
        load_row(rows[j] + i + k * kRowStep, of_row);
        add_product(of_row, weight, sums[k]);
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) store_row(sums[k], to + i + k * kRowStep);
  }
};

template <bool kCaps, bool kBias, bool kDocuments>
struct WeighKeys {
  CARAVAN_INLINE void run(float* __restrict s, int64_t count, const TileScores* scores, const SeenRows* seen,
                          float* largest, float* sum) {
    constexpr float kLowest = std::numeric_limits<float>::lowest();
    const float cap = scores->cap;
    const float scale = kCaps ? scores->scale / cap : scores->scale;
    const float* __restrict bias = scores->bias;
    const int32_t* __restrict documents = seen->documents;
    const int32_t own = seen->document;
    for (int64_t i = 0; i < count; ++i) {
      float value = s[i] * scale;
      if constexpr (kCaps) value = cap * hyperbolic_tangent(value);
      if constexpr (kBias) value += bias[i];
      if constexpr (kDocuments) value = documents[i] == own ? value : kLowest;
      s[i] = value;
    }
    const float most = max_of(s, count);
    *largest = most > kLowest ? most : kLowest;
    const float from = *largest;
    for (int64_t i = 0; i < count; ++i) {
      const float weight = exponential(s[i] - from);
      if constexpr (kDocuments) {
        s[i] = documents[i] == own ? weight : 0.0F;
      } else {
        s[i] = weight;
      }
    }
    *sum = static_cast<float>(sum_of<float>(count, [s](int64_t i) [[gnu::always_inline]] { return s[i]; }));
  }
};

template <class T>
struct MergePieces {
  CARAVAN_INLINE void run(float* pieces, int64_t count, int64_t step, int64_t width, int64_t pitch, T* out) {
    const float* largest = pieces + pitch;
    const float* sum = largest + 1;
    float most = std::numeric_limits<float>::lowest();
    for (int64_t i = 0; i < count; ++i) most = largest[i * step] > most ? largest[i * step] : most;
    float total = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float factor = exponential(largest[i * step] - most);
      total += factor * sum[i * step];
      float* __restrict to = pieces;
      if (i == 0) {
        for (int64_t k = 0; k < width; ++k) to[k] *= factor;
      } else {
        const float* __restrict piece = pieces + i * step;
        for (int64_t k = 0; k < width; ++k) to[k] += factor * piece[k];
      }
    }
    const float share = total == 0 ? 0 : 1 / total;
    for (int64_t k = 0; k < width; ++k) store(pieces[k] * share, out[k]);
  }
};

/// Whether rows can be read as they are.
template <class T, class F>
void with_direct(int64_t width, F f) {
  if constexpr (std::is_same_v<T, float>) {
    if (width % kRowStep == 0) return f(std::true_type());
  }
  f(std::false_type());
}

}  // namespace

template <class T>
void multiply_keys(const QueryHeads& heads, const float* q, const HeadRows<T>& keys, float* s, int64_t s_pitch,
                   float* memory) {
  with_direct<T>(heads.width, [&](auto is_direct) {
    simd::dispatch<MultiplyKeys<T, is_direct.value>>(&heads, q, &keys, s, s_pitch, memory);
  });
}

void weigh_keys(float* s, int64_t count, const TileScores& scores, const SeenRows& seen, float& largest, float& sum) {
  with_bool(scores.cap > 0, [&](auto caps) {
    with_bool(scores.bias != nullptr, [&](auto has_bias) {
      with_bool(seen.documents != nullptr, [&](auto has_documents) {
        simd::dispatch<WeighKeys<caps.value, has_bias.value, has_documents.value>>(s, count, &scores, &seen, &largest,
                                                                                   &sum);
      });
    });
  });
}

template <class T>
void add_values(const QueryHeads& heads, const float* p, int64_t p_pitch, const HeadRows<T>& values, float* sum,
                int64_t sum_pitch, float* memory) {
  with_direct<T>(heads.width, [&](auto is_direct) {
    simd::dispatch<AddValues<T, is_direct.value>>(&heads, p, p_pitch, &values, sum, sum_pitch, memory);
  });
}

template <class T>
void merge_pieces(float* pieces, int64_t count, int64_t step, int64_t width, int64_t pitch, T* out) {
  simd::dispatch<MergePieces<T>>(pieces, count, step, width, pitch, out);
}

#define CARAVAN_INSTANTIATE_QUERY_ROWS(T)                                                                          \
  template void multiply_keys(const QueryHeads&, const float*, const HeadRows<T>&, float*, int64_t, float*);       \
  template void add_values(const QueryHeads&, const float*, int64_t, const HeadRows<T>&, float*, int64_t, float*); \
  template void merge_pieces(float*, int64_t, int64_t, int64_t, int64_t, T*);
CARAVAN_INSTANTIATE_QUERY_ROWS(float)
CARAVAN_INSTANTIATE_QUERY_ROWS(Bf16)
CARAVAN_INSTANTIATE_QUERY_ROWS(Fp16)

}  // namespace caravan::kernels
