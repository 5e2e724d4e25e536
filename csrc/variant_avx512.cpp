// AVX-512 with VNNI, for CPUs without AMX: unsigned x signed bytes with vpdpbusd, 8 rows x 32 outputs in registers. Compiled twice: for
// the real instructions, and with TAILRACE_AVX512_EMULATED for any machine, where avx512_vector.h computes what they would.
//
// Why bytes: vpdpbusd does 64 products an instruction, vpdpwssd (16-bit words) 32. Where two ports take 512-bit products that is 128 and
// 64 a cycle, where one does 64 and 32; AVX2's multiply and add reach 21 to 32. Words alone would double AVX2 on some CPUs only.
// (A port model of an Ice Lake server gives this file's sweep of 8 rows 113 a cycle, AVX2's of 6 rows 24.)
// vpdpbusd wants one unsigned side, and 8 bits are too few for a wide channel, so a quantized row is stored as
//   q + 128 = 256 * high + low      low: K bytes; high + 128: a byte for each wide channel (narrow ones have high = 0)
// and, all modulo 2^32, which loses nothing because the sum itself fits,
//   sum w*q = sum w*low + 256 * (sum over wide channels of w*(high+128)) - offset,   offset = 128 * sum w + 32768 * (sum over wide w)
// The offset of each output is computed when weights are packed. The weights of the wide channels are gathered from the panel when it
// is used (1.5 instructions a channel and 16 outputs), not stored twice: memory carries 8 bits a weight, for nib4 5.
//
// Few rows of nib4, the batch-1 decode of most models: rewriting a panel as bytes costs as much as eight rows, the gathering comes on
// top, and both pay only from three rows on. Up to kStreamRows rows are int16 words instead, which take wide channels as they are, and
// the weights become words in registers: 11 cycles for 128 weights on two ports, so 7 to 8 bytes a cycle, more than one core reads
// from DRAM (5 to 6).
//
// Packed weights: panels of 16 outputs, then int32 offsets [N]
//   int8  [N/16][K/4][16 outputs][4 inputs]
//   bf16  [N/16][K/2][16 outputs][2 inputs]
//   nib4  [N/16][K/32] groups of 320 bytes: a[16] b[16] int16, then 4 x 64 bytes for 8 inputs each: 32 words, word l = output l/2,
//         inputs by nibble (lowest first) and l%2: 0 2 | 1 3 | 4 6 | 5 7, so that two nibbles' results interleave to bytes in order
// Quantized rows: bytes [K + wide]; words int16 [K] in the order 0 2 1 3 of every four; for bf16 weights float32 [K].
//
// Floats are added up in the order of AVX2, lane by lane the same operations: both variants give the same bits throughout.
#include "kernels.h"

#if defined(TAILRACE_AVX512_EMULATED) ? defined(__AVX2__) && defined(__FMA__) : defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>

namespace tailrace {
namespace {

#include "avx512_vector.h"
#include "vector_inl.h"
#include "rows_inl.h"
#include "lora_inl.h"
#include "attention_inl.h"
#include "gemm_inl.h"

#define TAILRACE_UNROLL _Pragma("GCC unroll 8")
#define TAILRACE_KERNEL __attribute__((noinline))

typedef uint8_t u8x8 __attribute__((vector_size(8)));

constexpr int kTileRows = 8;
constexpr int kStreamRows = 2;        // nib4 rows up to which weights become words as they stream by
constexpr int kSweepInputs = 512;     // of both panels at a time: 16 KB of weights and 4 KB of rows stay in L1
constexpr int kPrefetchBytes = 2048, kPrefetchNibbles = 4096;

inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// ---- packed weights ----

inline size_t packed_with_offsets(Format format, int n, int k, int wide_count) {
  const size_t offsets = format == Format::bf16 ? 0 : sizeof(int32_t) * static_cast<size_t>(round_up(n, kTileColumns));
  return packed_bytes(format, n, k, wide_count) + offsets;
}

// weight(output, input) -> int8
template <class Weight>
void pack_offsets(int n, int k, const int32_t* wide, int wide_count, uint8_t* out, const Weight& weight) {
  for (int output = 0; output < round_up(n, kTileColumns); ++output, out += sizeof(uint32_t)) {
    int32_t all = 0, large = 0;
    for (int c = 0; output < n && c < k; ++c) all += weight(output, c);
    for (int j = 0; output < n && j < wide_count; ++j) large += weight(output, wide[j]);
    const uint32_t offset = 128u * static_cast<uint32_t>(all) + 32768u * static_cast<uint32_t>(large);
    __builtin_memcpy(out, &offset, sizeof offset);
  }
}

inline void pack_byte_panels(const int8_t* w, int n, int k, const int32_t* wide, int wide_count, uint8_t* out) {
  const auto weight = [=](int output, int c) { return w[int64_t{output} * k + c]; };
  uint8_t* panel = out;
  for (int first = 0; first < round_up(n, kTileColumns); first += kPanel, panel += panel_bytes(Format::int8, k)) {
    for (int j = 0; j < kPanel; ++j) {
      for (int c = 0; c < k; ++c) {
        panel[(c / 4 * kPanel + j) * 4 + c % 4] = first + j < n ? static_cast<uint8_t>(weight(first + j, c)) : 0;
      }
    }
  }
  pack_offsets(n, k, wide, wide_count, panel, weight);
}

inline void pack_nibble_column(const uint8_t* q, int16_t a, int16_t b, int j, uint8_t* group) {
  __builtin_memcpy(group + 2 * j, &a, 2);
  __builtin_memcpy(group + 32 + 2 * j, &b, 2);
  for (int c = 0; c < kNibbleGroup; ++c) {
    const int nibble = c % 8 / 4 * 2 + c % 2, word = 2 * j + c / 2 % 2;
    group[64 + c / 8 * 64 + 2 * word + nibble / 2] |= static_cast<uint8_t>((q[c] & 15) << (nibble % 2 * 4));
  }
}

inline void pack_nibble_panels(const uint8_t* q, const int16_t* a, const int16_t* b, int n, int k, const int32_t* wide,
                               int wide_count, uint8_t* out) {
  const int groups = k / kNibbleGroup;
  const int64_t panel = panel_bytes(Format::nib4, k);
  __builtin_memset(out, 0, packed_bytes(Format::nib4, n, k, 0));
  for (int row = 0; row < n; ++row) {
    for (int g = 0; g < groups; ++g) {
      const int64_t at = int64_t{row} * groups + g;
      pack_nibble_column(q + at * kNibbleGroup, a[at], b[at], row % kPanel, out + row / kPanel * panel + g * kNibbleGroupBytes);
    }
  }
  pack_offsets(n, k, wide, wide_count, out + round_up(n, kTileColumns) / kPanel * panel, [=](int output, int c) {
    const int64_t group = int64_t{output} * groups + c / kNibbleGroup;
    return static_cast<int16_t>(a[group] * (q[int64_t{output} * k + c] & 15) + b[group]) >> 6;
  });
}

// ---- quantized rows ----

inline bool as_words(const Linear& w, int m) { return w.format == Format::nib4 && m <= kStreamRows; }

inline size_t row_bytes(Format format, int m, int k, int wide_count) {
  const int64_t row = format == Format::bf16 ? row_stride_bytes(format, k) : int64_t{k} + wide_count;  // few rows as words are no more
  return static_cast<size_t>(round_up(m, 32) * row);
}

struct ByteRows {
  static int64_t stride(const Linear& w, int m) {
    return w.format == Format::bf16 || as_words(w, m) ? row_stride_bytes(w.format, w.k) : int64_t{w.k} + w.wide_count;
  }

  static void store_int(const QuantRows& out, const Linear& consumer, int row, const float* x, float inv) {
    uint8_t* to = out.data + row * stride(consumer, out.m);
    if (as_words(consumer, out.m)) return store_words(reinterpret_cast<int16_t*>(to), x, consumer.k, inv);
    for (int c = 0; c < consumer.k; c += kLanes) store_bytes(to + c, round8(load8(x + c) * inv) + 128);
    for (int j = 0; j < consumer.wide_count; j += kLanes) {
      __m256i channels;
      __builtin_memcpy(&channels, consumer.wide + j, sizeof channels);
      const f32x8 wide = (f32x8)_mm256_i32gather_ps(x, channels, 4);
      store_bytes(to + consumer.k + j, ((round8(wide * inv) + 128) >> 8) + 128);
    }
  }

  static void store_bf16(const QuantRows& out, const Linear& consumer, int row, const float* x) {
    Int16Rows::store_bf16(out, consumer, row, x);
  }

 private:
  static void store_bytes(uint8_t* to, i32x8 v) {
    const u8x8 low = __builtin_convertvector(v, u8x8);
    __builtin_memcpy(to, &low, sizeof low);
  }
  static void store_words(int16_t* to, const float* x, int k, float inv) {
    for (int c = 0; c < k; c += kLanes) {
      const i16x8 q = __builtin_shuffle(narrow16(round8(load8(x + c) * inv)), i16x8{0, 2, 1, 3, 4, 6, 5, 7});
      __builtin_memcpy(to + c, &q, sizeof q);
    }
  }
};

inline void read_integers(const Linear& consumer, const QuantRows& rows, int row, int32_t* q) {
  if (consumer.format == Format::bf16) return read_row(consumer, rows, row, q);
  const uint8_t* from = rows.data + row * ByteRows::stride(consumer, rows.m);
  const int16_t* words = reinterpret_cast<const int16_t*>(from);
  const bool wide_words = as_words(consumer, rows.m);
  for (int c = 0; c < consumer.k; ++c) q[c] = wide_words ? words[c / 4 * 4 + (c % 4 == 1 ? 2 : c % 4 == 2 ? 1 : c % 4)] : from[c] - 128;
  for (int j = 0; !wide_words && j < consumer.wide_count; ++j) q[consumer.wide[j]] += 256 * (from[consumer.k + j] - 128);
}

// ---- nibbles ----

// a and b of a group's outputs, each doubled for the two inputs of a word.
struct Factors {
  u16x32 a, b;
  explicit Factors(const uint8_t* group) {
    const u16x32 both = load64<u16x32>(group);
    const u16x32 doubled = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
    a = __builtin_shuffle(both, doubled);
    b = __builtin_shuffle(both, doubled + 16);
  }
  u16x32 scaled(u16x32 q) const { return q * a + b; }
};

template <int nibble>
inline u16x32 nibbles(u16x32 words) {
  return nibble == 3 ? words >> 12 : (words >> (4 * nibble)) & 15;
}

// A nib4 panel as int8 [K/4][16][4]. Factors are taken four times, so that a weight is the upper byte of its word.
inline void expand_nibbles(const uint8_t* panel, int k, uint8_t* out) {
  for (int g = 0; g < k / kNibbleGroup; ++g, panel += kNibbleGroupBytes) {
    Factors factors(panel);
    factors.a <<= 2;
    factors.b <<= 2;
    prefetch(panel + kPrefetchNibbles);
    for (int v = 0; v < 4; ++v, out += 128) {
      prefetch(panel + kPrefetchNibbles + 64 + v * 64);
      const u16x32 words = load64<u16x32>(panel + 64 + v * 64);
      store64(out, (factors.scaled(nibbles<0>(words)) >> 8) | (factors.scaled(nibbles<1>(words)) & 0xFF00));
      store64(out + 64, (factors.scaled(nibbles<2>(words)) >> 8) | (factors.scaled(nibbles<3>(words)) & 0xFF00));
    }
  }
}

// Four sums a row, one for each nibble: a single one would wait for itself.
template <int R>
struct WordSums {
  i32x16 acc[R][4] = {};

  template <int nibble>
  void add(const int16_t* x, int k, const Factors& factors, u16x32 words) {
    const i32x16 weights = (i32x16)((i16x32)factors.scaled(nibbles<nibble>(words)) >> 6);
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
      acc[r][nibble] = dot_words(acc[r][nibble], splat32(x + int64_t{r} * k + 2 * nibble), weights);
    }
  }
};

template <int R>
TAILRACE_KERNEL void stream_nibbles(const int16_t* x, int k, const uint8_t* panel, int32_t* sums) {
  WordSums<R> tile;
  for (int g = 0; g < k / kNibbleGroup; ++g, panel += kNibbleGroupBytes) {
    const Factors factors(panel);
    prefetch(panel + kPrefetchNibbles);
    for (int v = 0; v < 4; ++v, x += 8) {
      prefetch(panel + kPrefetchNibbles + 64 + v * 64);
      const u16x32 words = load64<u16x32>(panel + 64 + v * 64);
      tile.template add<0>(x, k, factors, words);
      tile.template add<1>(x, k, factors, words);
      tile.template add<2>(x, k, factors, words);
      tile.template add<3>(x, k, factors, words);
    }
  }
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    store64(sums + r * kTileColumns, (tile.acc[r][0] + tile.acc[r][1]) + (tile.acc[r][2] + tile.acc[r][3]));
  }
}

// ---- bytes ----

// moves[from][to] brings byte `from` of every four to place `to` and clears the others.
struct Moves {
  alignas(64) uint8_t control[4][4][64] = {};
  constexpr Moves() {
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) {
        for (int i = 0; i < 64; ++i) control[from][to][i] = static_cast<uint8_t>(i % 4 == to ? i % 16 / 4 * 4 + from : 128);
      }
    }
  }
  u8x64 moved(const uint8_t* panel, int channel, int to) const {
    return shuffle_bytes(load64<u8x64>(panel + channel / 4 * 64), load64<u8x64>(control[channel % 4][to]));
  }
};
constexpr Moves kMoves;

// The wide channels of a panel [K/4][16][4], side by side: [count/4][16][4].
inline void gather_wide(const uint8_t* panel, const int32_t* wide, int count, uint8_t* out) {
  for (int j = 0; j < count; j += 4, out += 64) {
    store64(out, kMoves.moved(panel, wide[j], 0) | kMoves.moved(panel, wide[j + 1], 1) | kMoves.moved(panel, wide[j + 2], 2) |
                     kMoves.moved(panel, wide[j + 3], 3));
  }
}

// Some inputs of some rows times panels [inputs/4][16][4].
struct Product {
  const uint8_t* x;
  int64_t stride;
  const uint8_t* panels;
  int64_t panel_stride;
  int inputs;
  int ahead;   // bytes prefetched ahead of the panels; 0 where they are in the cache
  bool first;  // sums begin here
};

// Few rows have several sums an output, so that products do not wait for each other.
template <int R, int P>
TAILRACE_KERNEL void dot_byte_rows(const Product& product, int32_t* sums) {
  constexpr int kSums = R * P >= 8 ? 1 : R * P >= 4 ? 2 : 4;
  i32x16 acc[kSums][R][P] = {};
  const uint8_t *x = product.x, *end = x + product.inputs, *panel = product.panels, *second = panel + product.panel_stride;
  const int64_t stride = product.stride, ahead = product.ahead;
  for (; x < end; x += 4 * kSums, panel += 64 * kSums, second += 64 * kSums) {
    TAILRACE_UNROLL for (int s = 0; s < kSums; ++s) {
      const i32x16 w[2] = {load64<i32x16>(panel + 64 * s), P > 1 ? load64<i32x16>(second + 64 * s) : i32x16{}};
      prefetch(panel + 64 * s + ahead);
      if (P > 1) prefetch(second + 64 * s + ahead);
      TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
        const i32x16 quad = splat32(x + r * stride + 4 * s);
        TAILRACE_UNROLL for (int p = 0; p < P; ++p) acc[s][r][p] = dot_bytes(acc[s][r][p], quad, w[p]);
      }
    }
  }
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL for (int p = 0; p < P; ++p) {
      i32x16 total = acc[0][r][p];
      TAILRACE_UNROLL for (int s = 1; s < kSums; ++s) total += acc[s][r][p];
      int32_t* to = sums + r * kTileColumns + p * kPanel;
      store64(to, product.first ? total : total + load64<i32x16>(to));
    }
  }
}

using ByteKernel = void (*)(const Product&, int32_t*);
template <int P>
constexpr ByteKernel kByteKernels[kTileRows] = {dot_byte_rows<1, P>, dot_byte_rows<2, P>, dot_byte_rows<3, P>, dot_byte_rows<4, P>,
                                                dot_byte_rows<5, P>, dot_byte_rows<6, P>, dot_byte_rows<7, P>, dot_byte_rows<8, P>};

// ---- floats ----

template <int R>
TAILRACE_KERNEL void dot_bf16_rows(const float* const* rows, const uint8_t* panel, int pairs, float* out, int64_t stride, bool first) {
  f32x16 acc[R];
  const float* x[R];
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    x[r] = rows[r];
    acc[r] = first ? f32x16{} : load64<f32x16>(out + r * stride);
  }
  for (int p = 0; p < pairs; ++p, panel += 64) {
    const u32x16 w = load64<u32x16>(panel);
    const f32x16 even = (f32x16)(w << 16), odd = (f32x16)(w & 0xFFFF0000);
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) acc[r] = fma16((f32x16)splat32(x[r] + 2 * p), even, acc[r]);
    TAILRACE_UNROLL for (int r = 0; r < R; ++r) acc[r] = fma16((f32x16)splat32(x[r] + 2 * p + 1), odd, acc[r]);
  }
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) store64(out + r * stride, acc[r]);
}

// ---- integers of an int8 cache ----

// Sums of even and of odd bytes apart where there are few rows.
template <int R>
TAILRACE_KERNEL void multiply_words(const Left& left, const Right& right, int32_t* sums) {
  constexpr int kSums = R <= 4 ? 2 : 1;
  i32x16 acc[R][2][kSums] = {};
  for (int s = 0; s < right.steps; ++s) {
    const uint8_t *first = right.panel[0][s], *second = right.panel[1][s];
    const int16_t* x = left.x + (right.first_step + s) * kInnerStep;
    for (const int16_t* end = x + 4 * steps_quads(right, s); x < end; x += 4, first += 64, second += 64) {
      const u16x32 w[2] = {load64<u16x32>(first), load64<u16x32>(second)};
      TAILRACE_UNROLL for (int odd = 0; odd < 2; ++odd) {
        i32x16 words[2];
        TAILRACE_UNROLL for (int p = 0; p < 2; ++p) words[p] = (i32x16)((i16x32)(odd ? w[p] : w[p] << 8) >> 8);
        TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
          const i32x16 pair = splat32(x + r * left.stride + 2 * odd);
          TAILRACE_UNROLL for (int p = 0; p < 2; ++p) {
            i32x16& sum = acc[r][p][odd % kSums];
            sum = dot_words(sum, pair, words[p]);
          }
        }
      }
    }
  }
  TAILRACE_UNROLL for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL for (int p = 0; p < 2; ++p) {
      store64(sums + r * kProductColumns + p * kPanel, kSums > 1 ? acc[r][p][0] + acc[r][p][kSums - 1] : acc[r][p][0]);
    }
  }
}

struct WordProducts {
  static constexpr int kRows = 6;  // of more, addresses no longer fit the registers
  static size_t space_bytes(int) { return 0; }

  // Every four values in the order 0 2 1 3: pairs meet the even bytes of a column, then the odd ones.
  static void pack(const Left& left, int inner) {
    for (int r = 0; r < left.rows; ++r) {
      for (int16_t *x = left.x + r * left.stride, *end = x + inner; x < end; x += 8) {
        i16x8 v;
        __builtin_memcpy(&v, x, sizeof v);
        v = __builtin_shuffle(v, i16x8{0, 2, 1, 3, 4, 6, 5, 7});
        __builtin_memcpy(x, &v, sizeof v);
      }
    }
  }

  static void multiply(const Left& left, const Right& right, int32_t* sums) {
    constexpr decltype(&multiply_words<1>) kernels[] = {multiply_words<1>, multiply_words<2>, multiply_words<3>,
                                                        multiply_words<4>, multiply_words<5>, multiply_words<6>};
    kernels[left.rows - 1](left, right, sums);
  }
};

// ---- a task ----

struct Avx512Ops {
  using Products = WordProducts;
  static constexpr int kRows = kTileRows;

  static int64_t row_stride(const Linear& w, int m) { return ByteRows::stride(w, m); }

  static void products(const Tile& tile, uint8_t* work, int32_t* sums) {
    if (as_words(*tile.w, tile.m)) {
      stream(tile, sums);
    } else {
      multiply(tile, work, sums);
    }
  }

  static void dot_bf16(int rows, const float* const* x, const uint8_t* panel, int pairs, float* out, int64_t stride, bool first) {
    constexpr decltype(&dot_bf16_rows<1>) kernels[] = {dot_bf16_rows<1>, dot_bf16_rows<2>, dot_bf16_rows<3>, dot_bf16_rows<4>,
                                                       dot_bf16_rows<5>, dot_bf16_rows<6>, dot_bf16_rows<7>, dot_bf16_rows<8>};
    kernels[rows - 1](x, panel, pairs, out, stride, first);
  }

 private:
  static void stream(const Tile& tile, int32_t* sums) {
    constexpr decltype(&stream_nibbles<1>) kernels[] = {stream_nibbles<1>, stream_nibbles<2>};
    const int k = tile.w->k;
    for (int p = 0; p < tile.panel_count; ++p) {
      const uint8_t* panel = tile.panels + p * panel_bytes(Format::nib4, k);
      kernels[tile.count - 1](reinterpret_cast<const int16_t*>(tile.rows), k, panel, sums + p * kPanel);
    }
  }

  // work: panels as bytes [2][K][16] when they come as nibbles, then wide channels [2][wide][16].
  static void multiply(const Tile& tile, uint8_t* work, int32_t* sums) {
    const Linear& w = *tile.w;
    const int64_t bytes = int64_t{w.k} * kPanel;
    const uint8_t* panels = tile.panels;
    uint8_t* extra = work;
    if (w.format == Format::nib4) {
      for (int p = 0; p < tile.panel_count; ++p) expand_nibbles(tile.panels + p * panel_bytes(w.format, w.k), w.k, work + p * bytes);
      panels = work;
      extra = work + 2 * bytes;
    }
    const int64_t extra_bytes = int64_t{w.wide_count} * kPanel;
    for (int p = 0; p < tile.panel_count; ++p) gather_wide(panels + p * bytes, w.wide, w.wide_count, extra + p * extra_bytes);
    sweep(tile, {tile.rows + w.k, tile.stride, extra, extra_bytes, w.wide_count, 0, true}, sums, false);
    start_sums(tile, sums);
    const bool once = tile.count <= kRows;
    const int step = once ? w.k : kSweepInputs;
    for (int k0 = 0; k0 < w.k; k0 += step) {
      const int inputs = w.k - k0 < step ? w.k - k0 : step, ahead = once && w.format == Format::int8 ? kPrefetchBytes : 0;
      sweep(tile, {tile.rows + k0, tile.stride, panels + k0 * kPanel, bytes, inputs, ahead, false}, sums, !once && k0 == 0);
    }
  }

  // Sums over the high bytes of wide channels (zero without such) become what those over the low bytes start from.
  static void start_sums(const Tile& tile, int32_t* sums) {
    const Linear& w = *tile.w;
    const uint8_t* offsets = w.packed + w.n_pad / kPanel * panel_bytes(w.format, w.k) + tile.column * sizeof(int32_t);
    for (int r = 0; r < tile.count; ++r, sums += kTileColumns) {
      for (int p = 0; p < tile.panel_count; ++p) {
        store64(sums + p * kPanel, (load64<i32x16>(sums + p * kPanel) << 8) - load64<i32x16>(offsets + p * 64));
      }
    }
  }

  // All rows of the tile, a strip at a time, and meanwhile some of the next task's panels into L2.
  static void sweep(const Tile& tile, Product product, int32_t* sums, bool fetch_next) {
    const int strip = strip_rows<Avx512Ops>(tile.count), strips = static_cast<int>(ceil_div(tile.count, strip));
    const int64_t next_bytes = tile.panel_count * panel_bytes(tile.w->format, tile.w->k);
    for (int r = 0; r < tile.count; r += strip, product.x += strip * tile.stride) {
      const int rows = tile.count - r < strip ? tile.count - r : strip;
      if (fetch_next) prefetch_part(tile.next, next_bytes, r / strip, strips);
      (tile.panel_count > 1 ? kByteKernels<2> : kByteKernels<1>)[rows - 1](product, sums + r * kTileColumns);
    }
  }
};

inline size_t work_bytes(int max_k, int head_dim, int group) {
  const size_t panels = 4 * static_cast<size_t>(max_k) * kPanel;  // two, and their wide channels
  return scratch_bytes(max_k, head_dim, group) + panels + attention8_bytes<WordProducts>(head_dim);
}

// Constants only: code of this file must not run before the CPU is known to have AVX-512.
constexpr Kernels make_table(const char* name) {
  Kernels table = make_kernels<Avx512Ops>(name, true);
  table.packed_bytes = packed_with_offsets;
  table.pack_int8 = pack_byte_panels;
  table.pack_nib4 = pack_nibble_panels;
  table.rows_bytes = row_bytes;
  table.scratch_bytes = work_bytes;
  table.norm_row = norm_row<ByteRows>;
  table.quantize_row = quantize_row<ByteRows>;
  table.layer_norm_row = layer_norm_row<ByteRows>;
  table.gelu_row = gelu_row<ByteRows>;
  table.read_row = read_integers;
  return table;
}

}  // namespace

#if defined(TAILRACE_AVX512_EMULATED)
const Kernels* avx512_emulated_kernels() {
  static constexpr Kernels table = make_table("avx512-emulated");
  return &table;
}
#else
const Kernels* avx512_kernels() {
  static constexpr Kernels table = make_table("avx512");
  return &table;
}
#endif

}  // namespace tailrace

#else

namespace tailrace {
#if defined(TAILRACE_AVX512_EMULATED)
const Kernels* avx512_emulated_kernels() { return nullptr; }
#else
const Kernels* avx512_kernels() { return nullptr; }
#endif
}  // namespace tailrace

#endif
