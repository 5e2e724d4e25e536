// The variant for any CPU: plain loops in the shape the compiler can vectorize, and the readable version of every kernel. One loop is
// written for SSE2 besides, which every x86-64 has: seven times as fast.
#include "kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tailrace {
namespace {

#include "vector_inl.h"
#include "rows_inl.h"
#include "lora_inl.h"
#include "attention_inl.h"
#include "gemm_inl.h"

inline int16_t nibble_weight(int q, int16_t a, int16_t b) {
  return static_cast<int16_t>(static_cast<int16_t>(a * q + b) >> 6);
}

// Weights of 32 inputs x 16 outputs as int16 [16 pairs][16][2].
inline void expand_group(const uint8_t* group, int16_t* out) {
  int16_t factors[2 * kPanel];
  __builtin_memcpy(factors, group, sizeof factors);
  for (int pair = 0; pair < kNibbleGroup / 2; ++pair) {
    const uint8_t* words = group + 64 + pair / 2 * 32;
    for (int j = 0; j < kPanel; ++j) {
      const int16_t a = factors[factor_index(j)], b = factors[kPanel + factor_index(j)];
      for (int i = 0; i < 2; ++i) {
        const int byte = words[((j % 8) * 2 + i) * 2 + pair % 2];
        out[(pair * kPanel + j) * 2 + i] = nibble_weight(j < 8 ? byte & 15 : byte >> 4, a, b);
      }
    }
  }
}

#if defined(__SSE2__)

// Every x86-64 CPU multiplies pairs of 16-bit integers in one instruction, which compilers do not find in the loop below.
inline void dot_row(const int16_t* x, const int16_t* panel, int pairs, int32_t* sums, bool first) {
  __m128i acc[4];
  for (int i = 0; i < 4; ++i) acc[i] = first ? _mm_setzero_si128() : _mm_loadu_si128(reinterpret_cast<const __m128i*>(sums + 4 * i));
  for (int p = 0; p < pairs; ++p, panel += 2 * kPanel) {
    int32_t pair;
    __builtin_memcpy(&pair, x + 2 * p, sizeof pair);
    const __m128i both = _mm_set1_epi32(pair);
    for (int i = 0; i < 4; ++i) {
      const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + 8 * i));
      acc[i] = _mm_add_epi32(acc[i], _mm_madd_epi16(both, w));
    }
  }
  for (int i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 4 * i), acc[i]);
}

#else

inline void dot_row(const int16_t* x, const int16_t* panel, int pairs, int32_t* sums, bool first) {
  int32_t acc[kPanel];
  for (int j = 0; j < kPanel; ++j) acc[j] = first ? 0 : sums[j];
  for (int p = 0; p < pairs; ++p, panel += 2 * kPanel) {
    const int32_t a = x[2 * p], b = x[2 * p + 1];
    for (int j = 0; j < kPanel; ++j) acc[j] += panel[2 * j] * a + panel[2 * j + 1] * b;
  }
  for (int j = 0; j < kPanel; ++j) sums[j] = acc[j];
}

#endif

struct PortableOps {
  using Products = VectorProducts;
  static constexpr int kRows = 6;
  static constexpr int kStreamNibbles = kRows, kStreamBytes = kRows;

  static int64_t row_stride(const Linear& w, int) { return row_stride_bytes(w.format, w.k); }
  static void products(const Tile& tile, uint8_t* work, int32_t* sums) { widened_products<PortableOps>(tile, work, sums); }

  static void expand_int8(const uint8_t* panel, int k0, int k1, int16_t* out) {
    const int8_t* from = reinterpret_cast<const int8_t*>(panel) + int64_t{k0} * kPanel;
    for (int i = 0; i < (k1 - k0) * kPanel; ++i) out[i] = from[i];
  }

  static void expand_nib4(const uint8_t* panel, int k0, int k1, int16_t* out) {
    for (int g = k0 / kNibbleGroup; g < k1 / kNibbleGroup; ++g, out += kNibbleGroup * kPanel) {
      expand_group(panel + int64_t{g} * kNibbleGroupBytes, out);
    }
  }

  static void dot_int16(int rows, const int16_t* x, int64_t stride, const int16_t* panel, int pairs, int32_t* sums, bool first,
                        const Ahead&) {
    for (int r = 0; r < rows; ++r, x += stride, sums += kTileColumns) dot_row(x, panel, pairs, sums, first);
  }

  static void stream_int8(int rows, const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
    int16_t wide[kNibbleGroup * kPanel];
    for (int c = 0; c < k; c += kNibbleGroup) {
      expand_int8(panel, c, c + kNibbleGroup, wide);
      dot_int16(rows, x + c, k, wide, kNibbleGroup / 2, sums, c == 0, {});
    }
  }

  static void stream_nib4(int rows, const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
    int16_t wide[kNibbleGroup * kPanel];
    for (int c = 0; c < k; c += kNibbleGroup) {
      expand_nib4(panel, c, c + kNibbleGroup, wide);
      dot_int16(rows, x + c, k, wide, kNibbleGroup / 2, sums, c == 0, {});
    }
  }

  static void dot_bf16(int rows, const float* const* x, const uint8_t* panel, int pairs, float* out, int64_t stride, bool first) {
    for (int r = 0; r < rows; ++r) {
      float acc[kPanel];
      for (int j = 0; j < kPanel; ++j) acc[j] = first ? 0.0f : out[r * stride + j];
      for (int p = 0; p < pairs; ++p) {
        uint32_t w[kPanel];
        __builtin_memcpy(w, panel + p * 64, sizeof w);
        const float a = x[r][2 * p], b = x[r][2 * p + 1];
        for (int j = 0; j < kPanel; ++j) {
          float even, odd;
          const uint32_t low = w[j] << 16, high = w[j] & 0xFFFF0000u;
          __builtin_memcpy(&even, &low, 4);
          __builtin_memcpy(&odd, &high, 4);
          acc[j] += even * a;
          acc[j] += odd * b;
        }
      }
      for (int j = 0; j < kPanel; ++j) out[r * stride + j] = acc[j];
    }
  }
};

}  // namespace

const Kernels* portable_kernels() {
  static constexpr Kernels table = make_kernels<PortableOps>("portable", false);
  return &table;
}

}  // namespace tailrace
