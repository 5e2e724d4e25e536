// The contract between the executor and an instruction-set variant.
//
// A variant is one table of functions (`Kernels`). It chooses how packed weights and quantized rows lie in memory;
// the executor treats both as opaque bytes. Everything else has one layout for all variants, drawn below.
//
// The linear layer (the same integers for every variant, batch size and packed form):
//   row x[K] -> step = max(max|x_narrow| / 127, max|x_wide| / 32512);  inv = 1 / step;  q = rint(x * inv)
//   (round to nearest even; a row whose step is below kMinStep becomes step 0, q 0)
//   y[n] = (float(sum_k w8[n][k] * q[k]) * scale[n]) * step            the sum is exact in int32
//   nib4 weights expand to w8 = (a*q4 + b) >> 6 with int16 a, b per (row n, 32 input channels).
//   bf16: x rounded to bf16 (nearest even), y = sum of w*x in float32, one fixed order for every output.
//
// Rules for a variant
//   * A row's result depends on that row (and its keys) only: never on M, the row's place, the task cut or the thread.
//   * Functions touch no global state and allocate nothing; memory to work in is `Scratch`.
//   * Different threads call the same function for different rows, tasks or segments at the same time.
//   * Each file is compiled with its own flags: helpers live in an anonymous namespace, no std:: templates inside
//     kernels (the linker could otherwise pick a copy compiled for a newer CPU).
#pragma once

#include "common.h"

namespace tailrace {

constexpr int kBlockTokens = 64;     // tokens in a KV block
constexpr int kSegmentTokens = 256;  // keys in an attention segment; a multiple of kBlockTokens
constexpr int kTileColumns = 32;     // output columns of a GEMM tile; N is padded to it
constexpr int kNibbleGroup = 32;     // input channels sharing one (a, b)
constexpr int kMaxGroup = 32;        // query heads per KV head
constexpr float kMinStep = 1e-30f;

enum class Format : int { int8 = 0, nib4 = 1, bf16 = 2 };
enum class KvFormat : int { bf16 = 0, int8 = 1 };

// What a gated feed-forward applies to its gate; gelu in its tanh form (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
enum class Activation : int { none = 0, silu = 1, gelu = 2 };

// A matrix of floats cut into column blocks: element (r, c) is data[(c / width) * block_stride + r * row_stride + c % width].
//   row-major [M][ld]:            width = any multiple of 16 (say 32), block_stride = width, row_stride = ld
//   blocked   [N/32][M][32]:      width = 32, block_stride = M * 32, row_stride = 32      (GEMM output)
//   blocked   [ffn/16][M][16]:    width = 16, block_stride = M * 16, row_stride = 16      (gate_up after its activation)
struct FloatView {
  float* data = nullptr;
  int width = 32;
  int64_t block_stride = 32;
  int64_t row_stride = 0;
};

// Weights of one linear layer, packed by the same variant that uses them.
struct Linear {
  Format format = Format::int8;
  int n = 0;                         // outputs
  int n_pad = 0;                     // round_up(n, 32); padded outputs have weight 0 and scale 0
  int k = 0;                         // inputs, a multiple of 32
  const uint8_t* packed = nullptr;   // packed_bytes() long; aligned to a cache line in a model, not in tests
  const float* scale = nullptr;      // [n_pad]; null for bf16
  const int32_t* wide = nullptr;     // [wide_count] 16-bit input channels, ascending
  const uint32_t* wide_mask = nullptr;  // [k] all ones for a wide channel, else 0
  int wide_count = 0;                // 0 or a multiple of 64
};

// Quantized rows, laid out as the variant likes (rows_bytes() long, 64-byte aligned, room for round_up(m, 32) rows;
// bytes never written are zero or from an earlier call). The layout may depend on m: who writes rows and who reads them give the same.
struct QuantRows {
  uint8_t* data = nullptr;
  float* step = nullptr;  // [m]; unused for bf16
  int m = 0;
};

// Working memory of one thread: scratch_bytes() long, 64-byte aligned, contents undefined.
struct Scratch {
  uint8_t* data = nullptr;
  size_t bytes = 0;
};

// Embedding row -> residual row.
enum class EmbeddingFormat : int { f32 = 0, f16 = 1, bf16 = 2, q8_0 = 3 };
struct EmbedTask {
  EmbeddingFormat format = EmbeddingFormat::f32;
  const uint8_t* rows = nullptr;
  int64_t row_bytes = 0;
  int hidden = 0;
  float scale = 1;
};

// residual[row] += delta[row] (when there is a delta); normed = residual * rsqrt(mean square + eps) * weight; quantize.
// With `delta_weight` it is the normed delta that is added (a norm behind the sublayer).
struct NormTask {
  float* residual = nullptr;  // [M][hidden]
  int hidden = 0;
  FloatView delta;            // data null: nothing to add
  const float* delta_weight = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  const Linear* consumer = nullptr;
  QuantRows out;
  float* normed = nullptr;    // optional [M][hidden] copy of the normed row before quantization
};

// residual[row] = layer norm of (residual[row] + delta[row] + delta_bias), where there is a delta; quantized where there is a
// consumer. The norm (Ba, Kiros and Hinton, 2016, arXiv:1607.06450): (x - mean) * rsqrt(variance + eps) * weight + bias.
struct LayerNormTask {
  float* residual = nullptr;  // [M][hidden]
  int hidden = 0;
  FloatView delta;            // data null: nothing to add
  const float* delta_bias = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0;
  const Linear* consumer = nullptr;
  QuantRows out;
};

// gelu(x + bias), by the error function; quantized.
struct GeluTask {
  FloatView x;
  const float* bias = nullptr;
  const Linear* consumer = nullptr;
  QuantRows out;
};

struct QuantTask {
  FloatView x;
  const Linear* consumer = nullptr;
  QuantRows out;
};

// out = x @ w.T; with an activation columns come as 16 gate | 16 matching up and out gets act(gate) * up, 16 columns a tile
// (out.width = 16); otherwise out.width = 32.
struct GemmTask {
  const Linear* w = nullptr;
  QuantRows x;
  FloatView out;
  Activation gate = Activation::none;
};

// Paged KV memory. A block holds kBlockTokens tokens of every layer and KV head:
//
//   bf16  block -> [layer][kv_head] -> | K: 64 * head_dim | V: 64 * head_dim |
//     K  [token/16][d/2][token%16][d%2]   = [token/16][d/32] AMX B tiles of K^T; 32 bytes = 8 tokens x (d, d+1)
//     V  [d/16][token/2][d%16][token%2]   = [d/16][token/32] AMX B tiles of V;   32 bytes = 8 dims x (t, t+1)
//   int8  block -> [layer][kv_head] -> | K: 64 * head_dim | V: 64 * head_dim | K steps: 64 floats | V steps: 64 floats |
//     K  [token/16][d/4][token%16][d%4]   = [token/16][d/64] AMX B tiles; 64 bytes = 16 tokens x 4 dims
//     V  [d/16][token/4][d%16][token%4]   = [d/16] AMX B tiles;           64 bytes = 16 dims x 4 tokens
//     a token's key is step * integers, step = max|x| / 127, rounded to nearest even; its value likewise
//
// Memory is zero at first and always finite, so a key that is masked (weight 0) never poisons a sum. All that belongs to a block
// lies in it: copying its bytes copies it.
struct KvLayout {
  int layers = 0, kv_heads = 0, head_dim = 0;
  KvFormat format = KvFormat::bf16;
  bool int8() const { return format == KvFormat::int8; }
  int64_t part_bytes() const { return int64_t{kBlockTokens} * head_dim * (int8() ? 1 : 2); }  // K or V of one (layer, head)
  int64_t head_bytes() const { return 2 * (part_bytes() + (int8() ? kBlockTokens * int64_t{sizeof(float)} : 0)); }
  int64_t layer_bytes() const { return kv_heads * head_bytes(); }
  int64_t block_bytes() const { return layers * layer_bytes(); }
};

struct KvView {
  uint8_t* base = nullptr;
  KvLayout layout;
  int layer = 0;
  uint8_t* keys(int64_t block, int kv_head) const {
    return base + block * layout.block_bytes() + layer * layout.layer_bytes() + kv_head * layout.head_bytes();
  }
  uint8_t* values(int64_t block, int kv_head) const { return keys(block, kv_head) + layout.part_bytes(); }
  // int8 only: [kBlockTokens]
  float* key_steps(int64_t block, int kv_head) const {
    return reinterpret_cast<float*>(keys(block, kv_head) + 2 * layout.part_bytes());
  }
  float* value_steps(int64_t block, int kv_head) const { return key_steps(block, kv_head) + kBlockTokens; }
};

// Where one row of the batch stands: its absolute position and its slot in the cache.
struct RowPlace {
  int32_t position = 0;
  int32_t block = 0;  // block id; the slot inside is position % kBlockTokens
};

// Adds biases, norms each head of q and k (where there are such), rotates q and k of one row, scales q, rounds k and v to
// what the cache stores and writes them there.
struct RopeTask {
  FloatView qkv;  // columns: heads, then kv_heads of K, then kv_heads of V, head_dim each
  int heads = 0, rope_dim = 0;
  const float* cos = nullptr;  // [max_positions][rope_dim/2]
  const float* sin = nullptr;
  const RowPlace* places = nullptr;  // [M]
  KvView kv;
  float* q = nullptr;  // [M][heads * head_dim], float32, already multiplied by q_scale
  float q_scale = 0;   // log2(e) / sqrt(head_dim) unless the model says otherwise: scores are exponents of 2
  const float* bias = nullptr;    // [columns of qkv], or null
  const float* q_norm = nullptr;  // [head_dim] RMSNorm weights, or null
  const float* k_norm = nullptr;
  float eps = 0;
};

// Query rows of one sequence under one KV head. Row i is (position first_position + i / group, query head i % group) and lies
// at q + (i / group) * q_stride + (i % group) * head_dim. It sees keys 0 .. its own position, with a window only the last `window` of
// these; of a sequence that is seen in both directions all `keys`. Keys and values are read as the cache stores them, those of the rows themselves too. Over an int8 cache every variant gives
// the same bits (attention8_inl.h).
struct AttentionTask {
  const float* q = nullptr;
  int64_t q_stride = 0;  // floats between positions
  int positions = 0;
  int group = 0;         // query heads per KV head
  int first_position = 0;
  int kv_head = 0;
  KvView kv;
  const int32_t* block_table = nullptr;  // of the sequence, from position 0 on
  int window = 0;                        // 0: no limit
  float softcap = 0;                     // scores s become cap * tanh(s / cap), in exponents of 2; 0: they do not
  int keys = 0;                          // above 0: every row sees these, before and behind it
  struct Next {                          // blocks that the thread will probably read after this segment: a hint
    const int32_t* blocks = nullptr;
    int count = 0, kv_head = 0;
  } next;

  int end_key(int position) const { return keys > 0 ? keys : position + 1; }
  int first_key(int position) const { return window > 0 && position >= window ? position - window + 1 : 0; }
};

// What one segment contributes to each row: sum of 2^(s - max) over its visible keys, and the same weights times V.
// A row that sees none of the keys has max = -inf, sum = 0, out = 0.
struct Partial {
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
  float* out = nullptr;  // [rows][head_dim]
};

// A low-rank addition to some outputs of a linear layer: y += scale * b (a x), with a [rank][k] and b [n][rank] packed as in
// lora_inl.h. Every 16 outputs stand side by side; the first 16 begin at `column`, the next `column_step` behind them.
constexpr int kMaxRank = 64;
constexpr int kInner = 3 * kMaxRank;  // floats of a row between a and b: at most three additions (q, k, v) share an input
struct LowRank {
  int rank = 0, n = 0, k = 0;  // n a multiple of 32, k of 4
  int column = 0, column_step = 16;
  bool bf16 = false;  // how a and b are stored, else as floats
  float scale = 1;
  const void *a = nullptr, *b = nullptr;
};

struct Kernels {
  const char* name;
  int attention_rows;  // query rows (positions * group) an attention tile should have in prefill

  // Around the work of each thread in a step (AMX: tile configuration). May be null.
  void (*enter)();
  void (*leave)();

  Format (*preferred)(bool affine4);
  // Packed weights are tiles of 32 outputs, one behind another, and then perhaps a few bytes for each output, as many for all.
  size_t (*packed_bytes)(Format format, int n, int k, int wide_count);
  size_t (*tile_bytes)(Format format, int k, int wide_count);
  void (*pack_int8)(const int8_t* w, int n, int k, const int32_t* wide, int wide_count, uint8_t* out);
  void (*pack_nib4)(const uint8_t* q, const int16_t* a, const int16_t* b, int n, int k, const int32_t* wide,
                    int wide_count, uint8_t* out);
  void (*pack_bf16)(const bf16* w, int n, int k, uint8_t* out);

  size_t (*rows_bytes)(Format format, int m, int k, int wide_count);
  size_t (*scratch_bytes)(int max_k, int head_dim, int group);

  void (*embed_row)(const EmbedTask& task, int token, float* out);
  void (*norm_row)(const NormTask& task, int row, const Scratch& scratch);
  void (*quantize_row)(const QuantTask& task, int row, const Scratch& scratch);
  void (*layer_norm_row)(const LayerNormTask& task, int row);
  void (*gelu_row)(const GeluTask& task, int row, const Scratch& scratch);
  void (*rope_row)(const RopeTask& task, int row, const Scratch& scratch);
  // Integers of a quantized row in natural channel order (bf16: the rounded floats as bits). For tests.
  void (*read_row)(const Linear& consumer, const QuantRows& rows, int row, int32_t* q);

  // A GEMM over m rows is cut into tasks 0 .. gemm_tasks() - 1; the cut may depend on anything, the result must not.
  int (*gemm_tasks)(const GemmTask& task, int threads);
  void (*gemm)(const GemmTask& task, int index, int threads, const Scratch& scratch);

  // Keys [segment * kSegmentTokens, (segment + 1) * kSegmentTokens) for all rows of the task.
  void (*attention_segment)(const AttentionTask& task, int segment, const Partial& out, const Scratch& scratch);
  // into := into merged with the next segment, row by row; then out[row] = into.out / into.sum.
  void (*attention_merge)(const Partial& into, const Partial& next, int rows, int head_dim);
  void (*attention_finish)(const Partial& from, int row, int head_dim, float* out);

  // x := cap * tanh(x / cap); count is a multiple of 8.
  void (*softcap)(float* x, int count, float cap);

  // inner := a x of `rows` rows, kInner floats apart (up to the padded rank), then y += scale * b inner of rows `row` and following.
  void (*shrink)(const LowRank& w, const float* x, int64_t x_stride, int rows, float* inner);
  void (*expand)(const LowRank& w, const float* inner, const FloatView& y, int row, int rows);
  // out[ffn] := act(gate) * up of a row of a gate_up without its activation: the bits of a GEMM with it.
  void (*gate_row)(Activation activation, const FloatView& gate_up, int row, int ffn, float* out);
};

// Null when the variant was not built.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();           // variant_avx512.cpp
const Kernels* avx512_emulated_kernels();  // variant_avx512.cpp with TAILRACE_AVX512_EMULATED: the same code, its operations emulated
const Kernels* amx_kernels();           // variant_amx.cpp
const Kernels* amx_emulated_kernels();  // variant_amx.cpp with TAILRACE_AMX_EMULATED: the same code on emulated tiles

}  // namespace tailrace
