// AVX2 and FMA: integer products with vpmaddwd (16 x 16 -> 32 bits, exact), 6 rows x 16 outputs in registers.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace tailrace {
namespace {

#include "vector_inl.h"
#include "rows_inl.h"
#include "lora_inl.h"
#include "attention_inl.h"
#include "gemm_inl.h"

// Register tiles are arrays of vectors: they live in registers only when every loop over them is unrolled early.
#define TAILRACE_UNROLL _Pragma("GCC unroll 8")
// Kept out of line, so that all 16 registers are theirs.
#define TAILRACE_KERNEL __attribute__((noinline))

constexpr int kPrefetchBytes = 2048, kPrefetchNibbles = 4096;  // ahead in the weight stream, measured

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i widen(const void* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Two neighbouring inputs of a row in every 32-bit lane.
inline __m256i input_pair(const int16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return _mm256_set1_epi32(pair);
}

// In order: the compiler may not load all rows of several input pairs first, which would spill.
template <int R, bool kInOrder>
struct IntTile {
  __m256i acc[R][2];

  void clear() {
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
  }
  void load_sums(const int32_t* sums) {
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
      acc[r][0] = load(sums + r * kTileColumns);
      acc[r][1] = load(sums + r * kTileColumns + kLanes);
    }
  }
  void store(int32_t* sums) const {
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kTileColumns), acc[r][0]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kTileColumns + kLanes), acc[r][1]);
    }
  }
  // One input pair: w0 holds outputs 0-7, w1 outputs 8-15.
  void add(const int16_t* x, int64_t stride, __m256i w0, __m256i w1) {
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
      const __m256i pair = input_pair(x + r * stride);
      acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(pair, w0));
      acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(pair, w1));
      if (kInOrder) __asm__("" : "+x"(acc[r][0]), "+x"(acc[r][1]));
    }
  }
};

// Factors of one nib4 group, each doubled for the two inputs of a word.
struct Factors {
  __m256i a0, a1, b0, b1;
  explicit Factors(const uint8_t* group) {
    const __m256i a = load(group), b = load(group + 32);
    a0 = _mm256_unpacklo_epi16(a, a);
    a1 = _mm256_unpackhi_epi16(a, a);
    b0 = _mm256_unpacklo_epi16(b, b);
    b1 = _mm256_unpackhi_epi16(b, b);
  }
  __m256i low(__m256i q) const { return _mm256_srai_epi16(_mm256_add_epi16(_mm256_mullo_epi16(q, a0), b0), 6); }
  __m256i high(__m256i q) const { return _mm256_srai_epi16(_mm256_add_epi16(_mm256_mullo_epi16(q, a1), b1), 6); }
};

template <int R>
TAILRACE_KERNEL void dot_int16_rows(const int16_t* x, int64_t stride, const int16_t* panel, int pairs, int32_t* sums, bool first,
                                    Ahead ahead) {
  IntTile<R, false> tile;
  if (first) {
    tile.clear();
  } else {
    tile.load_sums(sums);
  }
  for (int p = 0; p < pairs; ++p, x += 2, panel += 2 * kPanel, ahead.from += ahead.step) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead.from), _MM_HINT_T1);
    tile.add(x, stride, load(panel), load(panel + kPanel));
  }
  tile.store(sums);
}

template <int R>
TAILRACE_KERNEL void stream_int8_rows(const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
  IntTile<R, true> tile;
  tile.clear();
  for (int c = 0; c < k; c += 4, x += 4, panel += 64) {
    prefetch(panel + kPrefetchBytes);
    tile.add(x, k, widen(panel), widen(panel + 16));
    tile.add(x + 2, k, widen(panel + 32), widen(panel + 48));
  }
  tile.store(sums);
}

template <int R>
TAILRACE_KERNEL void stream_nib4_rows(const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
  const __m256i mask = _mm256_set1_epi16(15);
  IntTile<R, true> tile;
  tile.clear();
  for (int g = 0; g < k / kNibbleGroup; ++g, panel += kNibbleGroupBytes) {
    const Factors factors(panel);
    prefetch(panel + kPrefetchNibbles);
    for (int v = 0; v < 8; ++v, x += 4) {
      if (v % 2 == 0) prefetch(panel + kPrefetchNibbles + 64 + v * 32);
      const __m256i words = load(panel + 64 + v * 32);
      tile.add(x, k, factors.low(_mm256_and_si256(words, mask)),
               factors.high(_mm256_and_si256(_mm256_srli_epi16(words, 4), mask)));
      tile.add(x + 2, k, factors.low(_mm256_and_si256(_mm256_srli_epi16(words, 8), mask)),
               factors.high(_mm256_srli_epi16(words, 12)));
    }
  }
  tile.store(sums);
}

inline __m256 even_floats(__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
inline __m256 odd_floats(__m256i v) {
  return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
}

template <int R>
inline void add_floats(__m256 (&acc)[R][2], const float* const* x, int at, __m256 w0, __m256 w1) {
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    const __m256 value = _mm256_broadcast_ss(x[r] + at);
    acc[r][0] = _mm256_fmadd_ps(value, w0, acc[r][0]);
    acc[r][1] = _mm256_fmadd_ps(value, w1, acc[r][1]);
    __asm__("" : "+x"(acc[r][0]), "+x"(acc[r][1]));  // row by row, or it spills
  }
}

template <int R>
TAILRACE_KERNEL void dot_bf16_rows(const float* const* rows, const uint8_t* panel, int pairs, float* out, int64_t stride, bool first) {
  __m256 acc[R][2];
  const float* x[R];
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    x[r] = rows[r];
    acc[r][0] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + r * stride);
    acc[r][1] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + r * stride + kLanes);
  }
  for (int p = 0; p < pairs; ++p, panel += 64) {
    add_floats<R>(acc, x, 2 * p, even_floats(load(panel)), even_floats(load(panel + 32)));
    __asm__("" : "+r"(panel));  // load the weights again rather than keep four registers of them
    add_floats<R>(acc, x, 2 * p + 1, odd_floats(load(panel)), odd_floats(load(panel + 32)));
  }
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(out + r * stride, acc[r][0]);
    _mm256_storeu_ps(out + r * stride + kLanes, acc[r][1]);
  }
}

struct Avx2Ops {
  using Products = VectorProducts;
  static constexpr int kRows = 6;
  static constexpr int kStreamNibbles = 4, kStreamBytes = 2 * kRows;

  static int64_t row_stride(const Linear& w, int) { return row_stride_bytes(w.format, w.k); }
  static void products(const Tile& tile, uint8_t* work, int32_t* sums) { widened_products<Avx2Ops>(tile, work, sums); }

  static void expand_int8(const uint8_t* panel, int k0, int k1, int16_t* out) {
    panel += int64_t{k0} * kPanel;
    for (int i = 0; i < (k1 - k0) * kPanel; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), widen(panel + i));
    }
  }

  static void expand_nib4(const uint8_t* panel, int k0, int k1, int16_t* out) {
    const __m256i mask = _mm256_set1_epi16(15);
    __m256i* to = reinterpret_cast<__m256i*>(out);
    panel += int64_t{k0} / kNibbleGroup * kNibbleGroupBytes;
    for (int g = k0 / kNibbleGroup; g < k1 / kNibbleGroup; ++g, panel += kNibbleGroupBytes) {
      const Factors factors(panel);
      for (int v = 0; v < 8; ++v, to += 4) {
        const __m256i words = load(panel + 64 + v * 32);
        _mm256_storeu_si256(to, factors.low(_mm256_and_si256(words, mask)));
        _mm256_storeu_si256(to + 1, factors.high(_mm256_and_si256(_mm256_srli_epi16(words, 4), mask)));
        _mm256_storeu_si256(to + 2, factors.low(_mm256_and_si256(_mm256_srli_epi16(words, 8), mask)));
        _mm256_storeu_si256(to + 3, factors.high(_mm256_srli_epi16(words, 12)));
      }
    }
  }

  static void dot_int16(int rows, const int16_t* x, int64_t stride, const int16_t* panel, int pairs, int32_t* sums, bool first,
                        const Ahead& ahead) {
    switch (rows) {
      case 1: return dot_int16_rows<1>(x, stride, panel, pairs, sums, first, ahead);
      case 2: return dot_int16_rows<2>(x, stride, panel, pairs, sums, first, ahead);
      case 3: return dot_int16_rows<3>(x, stride, panel, pairs, sums, first, ahead);
      case 4: return dot_int16_rows<4>(x, stride, panel, pairs, sums, first, ahead);
      case 5: return dot_int16_rows<5>(x, stride, panel, pairs, sums, first, ahead);
      default: return dot_int16_rows<6>(x, stride, panel, pairs, sums, first, ahead);
    }
  }

  static void stream_int8(int rows, const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
    switch (rows) {
      case 1: return stream_int8_rows<1>(x, k, panel, sums);
      case 2: return stream_int8_rows<2>(x, k, panel, sums);
      case 3: return stream_int8_rows<3>(x, k, panel, sums);
      case 4: return stream_int8_rows<4>(x, k, panel, sums);
      case 5: return stream_int8_rows<5>(x, k, panel, sums);
      default: return stream_int8_rows<6>(x, k, panel, sums);
    }
  }

  static void stream_nib4(int rows, const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
    switch (rows) {
      case 1: return stream_nib4_rows<1>(x, k, panel, sums);
      case 2: return stream_nib4_rows<2>(x, k, panel, sums);
      case 3: return stream_nib4_rows<3>(x, k, panel, sums);
      case 4: return stream_nib4_rows<4>(x, k, panel, sums);
      case 5: return stream_nib4_rows<5>(x, k, panel, sums);
      default: return stream_nib4_rows<6>(x, k, panel, sums);
    }
  }

  static void dot_bf16(int rows, const float* const* x, const uint8_t* panel, int pairs, float* out, int64_t stride, bool first) {
    switch (rows) {
      case 1: return dot_bf16_rows<1>(x, panel, pairs, out, stride, first);
      case 2: return dot_bf16_rows<2>(x, panel, pairs, out, stride, first);
      case 3: return dot_bf16_rows<3>(x, panel, pairs, out, stride, first);
      case 4: return dot_bf16_rows<4>(x, panel, pairs, out, stride, first);
      case 5: return dot_bf16_rows<5>(x, panel, pairs, out, stride, first);
      default: return dot_bf16_rows<6>(x, panel, pairs, out, stride, first);
    }
  }
};

}  // namespace

const Kernels* avx2_kernels() {
  static constexpr Kernels table = make_kernels<Avx2Ops>("avx2", true);
  return &table;
}

}  // namespace tailrace

#else

namespace tailrace {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace tailrace

#endif
