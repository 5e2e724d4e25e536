// AMX (int8 and bf16 tiles) with AVX-512. Compiled twice: for the real instructions, and with TAILRACE_AMX_EMULATED for any machine,
// where amx_tile.h computes what the instructions would; everything else is the same source.
//
// A tile is 1024 bytes: 16 rows of 64. Along K a tile covers 64 int8 or 32 bf16 inputs ("a step").
//
//   weights  [N/32][steps][half 2] B tiles; int8: [16 input quads][16 outputs][4], bf16: [16 input pairs][16 outputs][2]
//   rows     [M/16][steps] A tiles; [16 rows][64 bytes]
//
// int8 steps are K/64 main steps, then wide_count/64 extra steps. A wide (16-bit) channel is 256 * high + low: `low` lies at its
// natural place in the main steps; `high` lies in the extra steps, whose weights repeat those of the wide channels. So
//   total = main + 256 * extra,
// both exact in int32, is the same integer every other variant gets from int16 rows. nib4 weights are stored as the int8 they mean.
//
// bf16 outputs add up the steps in ascending order, whatever the number of rows: one row's bits never depend on M.
#include "kernels.h"

#if defined(TAILRACE_AMX_EMULATED) || (defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512F__))
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace tailrace {
namespace {

#include "amx_tile.h"
#include "vector_inl.h"
#include "rows_inl.h"
#include "lora_inl.h"
#include "strip_inl.h"
#include "attention8_inl.h"

constexpr int kTile = 1024;
constexpr int kTileRows = 16;
constexpr int kBlockRows = 2 * kTileRows;      // rows of a 2 x 2 block of accumulators
constexpr int kHalf = kTileColumns / 2;
constexpr int kRowsInCache = 512 << 10;        // bytes of quantized rows a task sweeps; they stay in L2
constexpr int kStreamAhead = 4096;             // bytes prefetched ahead of a weight stream
constexpr int kStreamLines = 2 * kTile / kCacheLine;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

inline int smaller(int a, int b) { return a < b ? a : b; }

// ---- layout ----

struct Steps {
  int main, extra;
  int all() const { return main + extra; }
};

inline Steps steps_of(Format format, int k, int wide_count) {
  if (format == Format::bf16) return {static_cast<int>(ceil_div(k, 32)), 0};
  return {static_cast<int>(ceil_div(k, 64)), wide_count / 64};
}
inline Steps steps_of(const Linear& w) { return steps_of(w.format, w.k, w.wide_count); }

inline size_t tile_bytes(Format format, int k, int wide_count) {
  return static_cast<size_t>(2 * kTile * steps_of(format, k, wide_count).all());
}
inline size_t packed_bytes(Format format, int n, int k, int wide_count) {
  return static_cast<size_t>(ceil_div(n, kTileColumns)) * tile_bytes(format, k, wide_count);
}
inline size_t rows_bytes(Format format, int m, int k, int wide_count) {
  return static_cast<size_t>(round_up(m, kBlockRows)) / kTileRows * kTile * steps_of(format, k, wide_count).all();
}

// Where row `row` begins in its first tile; step s is s * kTile further.
inline uint8_t* row_start(const QuantRows& rows, const Steps& steps, int row) {
  return rows.data + int64_t{row / kTileRows} * steps.all() * kTile + row % kTileRows * 64;
}

// Byte offset of (output, input) among the panels; `input` counts within int8 steps, extra ones included.
inline int64_t weight_at(const Steps& steps, int output, int input) {
  const int64_t tile = (int64_t{output / kTileColumns} * steps.all() + input / 64) * 2 + output / kHalf % 2;
  return tile * kTile + input % 64 / 4 * 64 + output % kHalf * 4 + input % 4;
}

// weight(output, input) -> int8
template <class Weight>
void pack_bytes(int n, int k, const int32_t* wide, int wide_count, uint8_t* out, const Weight& weight) {
  const Steps steps = steps_of(Format::int8, k, wide_count);
  __builtin_memset(out, 0, packed_bytes(Format::int8, n, k, wide_count));
  for (int output = 0; output < n; ++output) {
    for (int c = 0; c < k; ++c) out[weight_at(steps, output, c)] = static_cast<uint8_t>(weight(output, c));
    for (int j = 0; j < wide_count; ++j) {
      out[weight_at(steps, output, steps.main * 64 + j)] = static_cast<uint8_t>(weight(output, wide[j]));
    }
  }
}

inline void pack_int8(const int8_t* w, int n, int k, const int32_t* wide, int wide_count, uint8_t* out) {
  pack_bytes(n, k, wide, wide_count, out, [=](int output, int c) { return w[int64_t{output} * k + c]; });
}

inline void pack_nib4(const uint8_t* q, const int16_t* a, const int16_t* b, int n, int k, const int32_t* wide, int wide_count,
                      uint8_t* out) {
  pack_bytes(n, k, wide, wide_count, out, [=](int output, int c) {
    const int64_t group = int64_t{output} * (k / kNibbleGroup) + c / kNibbleGroup;
    const int16_t scaled = static_cast<int16_t>(a[group] * (q[int64_t{output} * k + c] & 15) + b[group]);
    return static_cast<int8_t>(scaled >> 6);
  });
}

inline void pack_bf16(const bf16* w, int n, int k, uint8_t* out) {
  const Steps steps = steps_of(Format::bf16, k, 0);
  __builtin_memset(out, 0, packed_bytes(Format::bf16, n, k, 0));
  for (int output = 0; output < n; ++output) {
    for (int c = 0; c < k; ++c) __builtin_memcpy(out + weight_at(steps, output, 2 * c), w + int64_t{output} * k + c, 2);
  }
}

// ---- quantized rows ----

inline void store_low_bytes(uint8_t* to, i32x8 q) {
  const i8x8 low = __builtin_convertvector(q, i8x8);
  __builtin_memcpy(to, &low, sizeof low);
}

inline int round_1(float x) { return round8(splat(x))[0]; }

// The high byte of a wide value; the low byte is then value - 256 * high, from -128 to 127.
inline int8_t high_byte(int q) { return static_cast<int8_t>((q + 128) >> 8); }

struct TileRows {
  static void store_int(const QuantRows& out, const Linear& consumer, int row, const float* x, float inv) {
    const Steps steps = steps_of(consumer);
    uint8_t* to = row_start(out, steps, row);
    for (int c = 0; c < consumer.k; c += kLanes) store_low_bytes(to + c / 64 * kTile + c % 64, round8(load8(x + c) * inv));
    if (consumer.k % 64) __builtin_memset(to + consumer.k / 64 * kTile + 32, 0, 32);
    uint8_t* extra = to + steps.main * kTile;
    for (int j = 0; j < consumer.wide_count; ++j) {
      extra[j / 64 * kTile + j % 64] = static_cast<uint8_t>(high_byte(round_1(x[consumer.wide[j]] * inv)));
    }
  }
  static void store_bf16(const QuantRows& out, const Linear& consumer, int row, const float* x) {
    uint8_t* to = row_start(out, steps_of(consumer), row);
    for (int c = 0; c < consumer.k; ++c) {
      const bf16 v = to_bf16(x[c]);
      __builtin_memcpy(to + c / 32 * kTile + c % 32 * 2, &v, 2);
    }
  }
};

inline void read_row(const Linear& consumer, const QuantRows& rows, int row, int32_t* q) {
  const Steps steps = steps_of(consumer);
  const uint8_t* from = row_start(rows, steps, row);
  for (int c = 0; c < consumer.k; ++c) {
    if (consumer.format == Format::bf16) {
      bf16 v;
      __builtin_memcpy(&v, from + c / 32 * kTile + c % 32 * 2, 2);
      q[c] = static_cast<int32_t>(uint32_t{v} << 16);
    } else {
      q[c] = static_cast<int8_t>(from[c / 64 * kTile + c % 64]);
    }
  }
  const uint8_t* extra = from + steps.main * kTile;
  if (consumer.format == Format::bf16) return;
  for (int j = 0; j < consumer.wide_count; ++j) {
    q[consumer.wide[j]] += 256 * static_cast<int8_t>(extra[j / 64 * kTile + j % 64]);
  }
}

// ---- products of tiles ----

struct Int8Dot {
  static constexpr bool kFloat = false;
  template <int C, int A, int B>
  static void dot() {
    tile::dot_int8<C, A, B>();
  }
};
struct Bf16Dot {
  static constexpr bool kFloat = true;
  template <int C, int A, int B>
  static void dot() {
    tile::dot_bf16<C, A, B>();
  }
};

// Operands of `steps` steps: row tiles a0 and a1 (null: only one), column tiles b0 and b1.
struct Operands {
  const uint8_t *a0, *a1, *b0, *b1;
  int64_t b_step;  // bytes from one step's column tile to the next; row tiles lie one after the other
};

// Accumulators 0 1 (first row tile) and 2 3 (second) += products. `between` runs after each step: vector work to hide.
template <class Ops, class Between>
inline void multiply(const Operands& at, int steps, const Between& between) {
  for (int s = 0; s < steps; ++s) {
    tile::load<4>(at.a0 + int64_t{s} * kTile, 64);
    tile::load<6>(at.b0 + s * at.b_step, 64);
    Ops::template dot<0, 4, 6>();
    tile::load<7>(at.b1 + s * at.b_step, 64);
    Ops::template dot<1, 4, 7>();
    if (at.a1) {
      tile::load<5>(at.a1 + int64_t{s} * kTile, 64);
      Ops::template dot<2, 5, 6>();
      Ops::template dot<3, 5, 7>();
    }
    between();
  }
}

inline void zero_block(bool second) {
  tile::zero<0>();
  tile::zero<1>();
  if (second) {
    tile::zero<2>();
    tile::zero<3>();
  }
}

// Rows of 32 columns: the two column tiles side by side.
inline void store_block(void* to, int64_t stride, bool second) {
  uint8_t* out = static_cast<uint8_t*>(to);
  tile::store<0>(out, stride);
  tile::store<1>(out + 64, stride);
  if (second) {
    tile::store<2>(out + kTileRows * stride, stride);
    tile::store<3>(out + kTileRows * stride + 64, stride);
  }
}

inline void configure_rows(int rows) {
  tile::configure(smaller(rows, kTileRows), rows > kTileRows ? rows - kTileRows : 0);
}

// ---- GEMM ----
//
// A task is a panel of 32 outputs (or a few) over a range of rows, in blocks of up to 32 rows. A block's sums are stored as integers (floats
// for bf16); its epilogue runs between the tile instructions of the next block, a few rows after every step.

inline int rows_per_task(const Linear& w, int m) {
  const int64_t block_bytes = int64_t{steps_of(w).all()} * 2 * kTile;
  const int64_t most = kRowsInCache / block_bytes > 1 ? kRowsInCache / block_bytes * kBlockRows : kBlockRows;
  return static_cast<int>(round_up(ceil_div(m, ceil_div(m, most)), kBlockRows));
}

// Few rows stream the weights once: neighbouring panels go into one task, so that prefetching ahead is rarely in vain.
inline int panels_per_task(const Linear& w, int m, int threads) {
  const int share = w.n_pad / kTileColumns / (8 * threads);
  return m > kBlockRows || share < 1 ? 1 : smaller(share, 8);
}

inline int gemm_tasks(const GemmTask& task, int threads) {
  const Linear& w = *task.w;
  const int m = task.x.m;
  const int64_t groups = ceil_div(w.n_pad / kTileColumns, panels_per_task(w, m, threads));
  return static_cast<int>(groups * ceil_div(m, rows_per_task(w, m)));
}

// Fetches lines while other work goes on. Addresses past the end of the weights do no harm.
struct Prefetch {
  const uint8_t* at;
  const uint8_t* end;
  int lines;  // a step
  bool soon;  // to L1, else to L2

  void step() {
    for (int i = 0; i < lines && at < end; ++i, at += kCacheLine) {
      if (soon) {
        __builtin_prefetch(at, 0, 3);
      } else {
        __builtin_prefetch(at, 0, 2);
      }
    }
  }
};

constexpr int kSums = kBlockRows * kTileColumns;

template <class Ops>
class Epilogue {
 public:
  Epilogue(const GemmTask& task, int column) : task_(task), column_(column), steps_(steps_of(*task.w)) {}

  // sums: main [32][32], then extra [32][32] when the layer has wide channels.
  void start(const int32_t* sums, int first, int rows) {
    sums_ = sums;
    first_ = first;
    rows_ = rows;
    next_ = 0;
  }
  void advance(int rows) {
    for (const int end = smaller(rows_, next_ + rows); next_ < end; ++next_) finish_row(next_);
  }
  int rows() const { return rows_; }

 private:
  f32x8 value(int at, int c, float step) const {
    if (Ops::kFloat) return load8(reinterpret_cast<const float*>(sums_) + at);
    i32x8 total;
    __builtin_memcpy(&total, sums_ + at, sizeof total);
    if (steps_.extra) {
      i32x8 extra;
      __builtin_memcpy(&extra, sums_ + kSums + at, sizeof extra);
      total += extra << 8;
    }
    return (__builtin_convertvector(total, f32x8) * load8(task_.w->scale + column_ + c)) * step;
  }

  void finish_row(int row) const {
    const float step = Ops::kFloat ? 1.0f : task_.x.step[first_ + row];
    float* out = task_.out.data + column_ / kTileColumns * task_.out.block_stride + (first_ + row) * task_.out.row_stride;
    const bool gated = task_.gate != Activation::none;
    const int width = gated ? kHalf : kTileColumns;
    for (int c = 0; c < width; c += kLanes) {
      f32x8 y = value(row * kTileColumns + c, c, step);
      if (gated) y = gated8(task_.gate, y, value(row * kTileColumns + c + kHalf, c + kHalf, step));
      store8(out + c, y);
    }
  }

  const GemmTask& task_;
  const int column_;
  const Steps steps_;
  const int32_t* sums_ = nullptr;
  int first_ = 0, rows_ = 0, next_ = 0;
};

// Sums of one block of rows: main steps, then extra steps, each a pass of its own.
template <class Ops, class Between>
void block_sums(const Operands& at, const Steps& steps, int32_t* sums, const Between& between) {
  zero_block(at.a1);
  multiply<Ops>(at, steps.main, between);
  store_block(sums, kTileColumns * 4, at.a1);
  if (!steps.extra) return;
  Operands extra = at;
  extra.a0 += int64_t{steps.main} * kTile;
  if (at.a1) extra.a1 += int64_t{steps.main} * kTile;
  extra.b0 += steps.main * at.b_step;
  extra.b1 += steps.main * at.b_step;
  zero_block(at.a1);
  multiply<Ops>(extra, steps.extra, between);
  store_block(sums + kSums, kTileColumns * 4, at.a1);
}

// Few rows: the panel streams from memory once, so fetch it a little ahead. Many rows: it is swept from the cache again and again,
// so fetch the next panel.
inline Prefetch weight_prefetch(const uint8_t* panel, int64_t bytes, int blocks) {
  if (blocks == 1) return {panel + kStreamAhead, panel + bytes + kStreamAhead, kStreamLines, true};
  const uint8_t* next = panel + bytes;
  return {next, next + bytes, static_cast<int>(ceil_div(kStreamLines, blocks)), false};
}

template <class Ops>
void gemm_panel(const GemmTask& task, int panel, int first, int end, int32_t* sums) {
  const Steps steps = steps_of(*task.w);
  const int64_t bytes = int64_t{steps.all()} * 2 * kTile;
  const uint8_t* w = task.w->packed + panel * bytes;
  Prefetch prefetch = weight_prefetch(w, bytes, static_cast<int>(ceil_div(end - first, kBlockRows)));
  Epilogue<Ops> epilogue(task, panel * kTileColumns);
  for (int row = first, configured = 0, side = 0; row < end; row += kBlockRows, side ^= 1) {
    const int rows = smaller(kBlockRows, end - row);
    if (rows != configured) configure_rows(configured = rows);
    const uint8_t* a = row_start(task.x, steps, row);
    const Operands at = {a, rows > kTileRows ? a + int64_t{steps.all()} * kTile : nullptr, w, w + kTile, 2 * kTile};
    const int share = static_cast<int>(ceil_div(epilogue.rows(), steps.all()));
    block_sums<Ops>(at, steps, sums + side * 2 * kSums, [&] {
      prefetch.step();
      epilogue.advance(share);
    });
    epilogue.advance(kBlockRows);
    epilogue.start(sums + side * 2 * kSums, row, rows);
  }
  epilogue.advance(kBlockRows);
}

inline void gemm(const GemmTask& task, int index, int threads, const Scratch& scratch) {
  const int panels = task.w->n_pad / kTileColumns, group = panels_per_task(*task.w, task.x.m, threads);
  const int groups = static_cast<int>(ceil_div(panels, group)), share = rows_per_task(*task.w, task.x.m);
  const int first = index / groups * share, end = smaller(task.x.m, first + share);
  int32_t* sums = reinterpret_cast<int32_t*>(scratch.data);
  const int panel = index % groups * group;
  for (int p = panel; p < smaller(panels, panel + group); ++p) {
    if (task.w->format == Format::bf16) {
      gemm_panel<Bf16Dot>(task, p, first, end, sums);
    } else {
      gemm_panel<Int8Dot>(task, p, first, end, sums);
    }
  }
}

#include "amx_attention_inl.h"

inline size_t scratch_bytes(int max_k, int head_dim, int) {
  const size_t gemm = 2 * 2 * kSums * sizeof(int32_t);
  const size_t attention = static_cast<size_t>(int64_t{2} * round_up(head_dim, 32) / 32 * kTile + 2 * kWeightTiles) +
                           kBlockRows * kScoreStride * sizeof(float);
  const size_t row = sizeof(float) * static_cast<size_t>(round_up(max_k > 2 * head_dim ? max_k : 2 * head_dim, 64));
  const size_t tiles = gemm > attention ? gemm : attention, most = tiles > row ? tiles : row;
  return most > attention8_bytes<TileProducts>(head_dim) ? most : attention8_bytes<TileProducts>(head_dim);
}

Format preferred(bool) { return Format::int8; }

// Constants only: code of this file must not run before the CPU is known to have AMX.
constexpr Kernels make_table(const char* name) {
  Kernels t{};
  t.name = name;
  t.attention_rows = 96;
  t.leave = tile::release;
  t.preferred = preferred;
  t.packed_bytes = packed_bytes;
  t.tile_bytes = tile_bytes;
  t.pack_int8 = pack_int8;
  t.pack_nib4 = pack_nib4;
  t.pack_bf16 = pack_bf16;
  t.rows_bytes = rows_bytes;
  t.scratch_bytes = scratch_bytes;
  t.embed_row = embed_row;
  t.norm_row = norm_row<TileRows>;
  t.quantize_row = quantize_row<TileRows>;
  t.layer_norm_row = layer_norm_row<TileRows>;
  t.gelu_row = gelu_row<TileRows>;
  t.rope_row = rope_row;
  t.read_row = read_row;
  t.gemm_tasks = gemm_tasks;
  t.gemm = gemm;
  t.attention_segment = attention_segment;
  t.attention_merge = attention_merge;
  t.attention_finish = attention_finish;
  t.softcap = softcap;
  add_low_rank(t);
  return t;
}

}  // namespace

#if defined(TAILRACE_AMX_EMULATED)
const Kernels* amx_emulated_kernels() {
  static constexpr Kernels table = make_table("amx-emulated");
  return &table;
}
#else
const Kernels* amx_kernels() {
  static constexpr Kernels table = make_table("amx");
  return &table;
}
#endif

}  // namespace tailrace

#elif !defined(TAILRACE_AMX_EMULATED)

namespace tailrace {
const Kernels* amx_kernels() { return nullptr; }
}  // namespace tailrace

#endif
