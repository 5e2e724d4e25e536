// Attention on AMX tiles. Part of variant_amx.cpp, which includes it after its layout and tile products.
//
// One arithmetic for one row or many: queries and weights are A tiles in bf16, K and V are B tiles as they lie in the cache.
//   scores   ascending steps of 32 dimensions
//   weights  2^(score - max of the row's visible keys), rounded to bf16; their sum adds the rounded weights, 16 lanes over
//            ascending keys, then a fixed tree; keys the row does not see weigh 0
//   out      ascending steps of 32 keys. Steps no row of the strip sees are left out: they would add zeros.
// Strips are 32 rows. Which rows share a strip decides only how many such zeros are added.

constexpr int kScoreStride = kSegmentTokens + 16;  // not a power of two: rows must not fall on the same cache lines

struct TileStrip {
  const AttentionTask& task;
  int segment;
  int first, rows;
  int seen_from[kBlockRows];  // each row sees keys [seen_from, visible) of this segment
  int visible[kBlockRows];
  int first_step = 0;       // steps of 32 keys, from a whole block on: those that some row sees
  int key_steps = 0;        // end of these
  uint8_t* queries;         // [row tile 2][head_dim/32] A tiles
  uint8_t* weights;         // [row tile 2][kSegmentTokens/32] A tiles
  float* scores;            // [32][kScoreStride]

  int head_dim() const { return task.kv.layout.head_dim; }
  bool two_tiles() const { return rows > kTileRows; }
  int64_t query_tiles() const { return int64_t{head_dim()} / 32 * kTile; }
  int32_t block(int key) const { return task.block_table[(segment * kSegmentTokens + key) / kBlockTokens]; }
};

constexpr int64_t kWeightTiles = kSegmentTokens / 32 * kTile;

inline void see(TileStrip& strip) {
  int longest = 0, start = kSegmentTokens;
  for (int r = 0; r < strip.rows; ++r) {
    const int position = strip.task.first_position + (strip.first + r) / strip.task.group;
    const int offset = strip.segment * kSegmentTokens;
    const int first = within_segment(strip.task.first_key(position) - offset), visible = within_segment(strip.task.end_key(position) - offset);
    strip.seen_from[r] = first;
    strip.visible[r] = first < visible ? visible : 0;
    if (strip.visible[r] > longest) longest = visible;
    if (strip.visible[r] > 0 && first < start) start = first;
  }
  strip.key_steps = (longest + 31) / 32;
  strip.first_step = longest ? start / kBlockTokens * (kBlockTokens / 32) : 0;
}

// Sixteen floats as bf16, nearest even; the rounded floats come back. For finite numbers only.
inline f32x16 store_rounded(uint8_t* to, f32x16 x) {
  const u32x16 bits = (u32x16)x;
  const u32x16 rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  const u16x16 high = __builtin_convertvector(rounded >> 16, u16x16);
  __builtin_memcpy(to, &high, sizeof high);
  return (f32x16)(rounded & 0xFFFF0000);
}

inline f32x16 load16(const float* p) {
  f32x16 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline void pack_queries(const TileStrip& strip) {
  for (int r = 0; r < strip.rows; ++r) {
    const int row = strip.first + r;
    const float* q = strip.task.q + row / strip.task.group * strip.task.q_stride + row % strip.task.group * strip.head_dim();
    uint8_t* to = strip.queries + r / kTileRows * strip.query_tiles() + r % kTileRows * 64;
    for (int d = 0; d < strip.head_dim(); d += 16) store_rounded(to + d / 32 * kTile + d % 32 * 2, load16(q + d));
  }
}

inline void tile_scores(const TileStrip& strip) {
  const uint8_t* second = strip.two_tiles() ? strip.queries + strip.query_tiles() : nullptr;
  for (int s = strip.first_step; s < strip.key_steps; ++s) {
    const int key = 32 * s;
    const uint8_t* keys = strip.task.kv.keys(strip.block(key), strip.task.kv_head) + key % kBlockTokens / 16 * 32 * strip.head_dim();
    zero_block(second);
    multiply<Bf16Dot>({strip.queries, second, keys, keys + 32 * strip.head_dim(), kTile}, strip.head_dim() / 32, [] {});
    store_block(strip.scores + key, kScoreStride * 4, second);
  }
}

// As exp2_8, sixteen lanes; x at most 0.
inline f32x16 exp2_16(f32x16 x) {
  const f32x16 lowest = f32x16{} - 126.0f;
  const f32x16 clamped = x > lowest ? x : lowest;
  const f32x16 shifted = clamped + kRoundMagic;
  const f32x16 f = clamped - (shifted - kRoundMagic);
  f32x16 p = f * 1.5353362e-4f + 1.3398874e-3f;
  p = p * f + 9.6184373e-3f;
  p = p * f + 5.5503324e-2f;
  p = p * f + 2.4022648e-1f;
  p = p * f + 6.9314720e-1f;
  p = p * f + 1.0f;
  const i32x16 scaled = (i32x16)p + (((i32x16)shifted - kRoundBits) << 23);
  return (f32x16)(scaled & (x >= lowest));
}

inline f32x8 low_half(f32x16 v) {
  f32x8 half;
  __builtin_memcpy(&half, &v, sizeof half);
  return half;
}
inline f32x8 high_half(f32x16 v) {
  f32x8 half;
  __builtin_memcpy(&half, reinterpret_cast<const char*>(&v) + sizeof half, sizeof half);
  return half;
}

// Sixteen scores; those before `first` and from `visible` on become -infinity.
inline f32x16 visible_scores(const float* s, int first, int visible) {
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const i32x16 seen = (lane < visible) & (lane >= first);
  const i32x16 hidden = (i32x16)(f32x16{} - __builtin_inff());
  return (f32x16)(((i32x16)load16(s) & seen) | (hidden & ~seen));
}

// One row's scores -> bf16 weights; its maximum and the sum of the weights.
inline void row_weights(const TileStrip& strip, int r, float* maximum, float* total) {
  const float* s = strip.scores + r * kScoreStride;
  uint8_t* to = strip.weights + r / kTileRows * kWeightTiles + r % kTileRows * 64;
  const int first = strip.seen_from[r], visible = strip.visible[r], start = 32 * strip.first_step;
  f32x16 top = f32x16{} - __builtin_inff();
  for (int t = start; t < visible; t += 16) {
    const f32x16 x = visible_scores(s + t, first - t, visible - t);
    top = x > top ? x : top;
  }
  *maximum = max_lanes(max8(low_half(top), high_half(top)));
  f32x16 sum = {};
  for (int t = start; t < 32 * strip.key_steps; t += 16) {
    f32x16 p = {};
    if (t < visible) p = exp2_16(visible_scores(s + t, first - t, visible - t) - *maximum);
    sum += store_rounded(to + t / 32 * kTile + t % 32 * 2, p);
  }
  *total = sum_lanes(low_half(sum) + high_half(sum));
}

// 32 dimensions of the output at a time stay in tile registers over the whole segment.
inline void tile_values(const TileStrip& strip, float* out) {
  const uint8_t* second = strip.two_tiles() ? strip.weights + kWeightTiles : nullptr;
  constexpr int64_t kDimTiles = kBlockTokens * 32;  // bytes of 16 dimensions
  for (int d = 0; d < strip.head_dim(); d += 32) {
    zero_block(second);
    for (int s = strip.first_step; s < strip.key_steps; s += 2) {
      const uint8_t* v = strip.task.kv.values(strip.block(32 * s), strip.task.kv_head) + d / 16 * kDimTiles;
      const Operands at = {strip.weights + s * kTile, second ? second + s * kTile : nullptr, v, v + kDimTiles, kTile};
      multiply<Bf16Dot>(at, smaller(2, strip.key_steps - s), [] {});
    }
    store_block(out + d, int64_t{strip.head_dim()} * 4, second);
  }
}

inline void attention_strip(TileStrip& strip, const Partial& out) {
  see(strip);
  float* result = out.out + int64_t{strip.first} * strip.head_dim();
  if (strip.key_steps) {
    configure_rows(strip.rows);
    pack_queries(strip);
    tile_scores(strip);
  } else {
    __builtin_memset(result, 0, sizeof(float) * static_cast<size_t>(strip.rows * strip.head_dim()));
  }
  const int start = 32 * strip.first_step;
  for (int r = 0; r < strip.rows; ++r) {
    if (strip.task.softcap > 0) softcap(strip.scores + r * kScoreStride + start, 32 * strip.key_steps - start, strip.task.softcap);
    row_weights(strip, r, out.max + strip.first + r, out.sum + strip.first + r);
  }
  if (strip.key_steps) tile_values(strip, result);
}

inline void multiply_step(const Operands& at) { multiply<Int8Dot>(at, 1, [] {}); }

// The products of attention8_inl.h: a 16-bit value is 256 * high + low, so the high bytes are a second row tile, and the two sums
// are joined exactly.
struct TileProducts {
  static constexpr int kRows = kTileRows;
  static size_t space_bytes(int inner) { return 2 * static_cast<size_t>(inner) / kInnerStep * kTile; }

  // [low, high][inner / 64] A tiles
  static void pack(const Left& left, int inner) {
    uint8_t* high = left.space + high_tiles(left);
    for (int r = 0; r < left.rows; ++r) {
      for (int k = 0; k < inner; k += 8) {
        const int at = k / kInnerStep * kTile + r * 64 + k % kInnerStep;
        i16x8 x;
        __builtin_memcpy(&x, left.x + r * left.stride + k, sizeof x);
        const i8x8 upper = __builtin_convertvector((x + 128) >> 8, i8x8), lower = __builtin_convertvector(x, i8x8);
        __builtin_memcpy(left.space + at, &lower, sizeof lower);
        __builtin_memcpy(high + at, &upper, sizeof upper);
      }
    }
    tile::configure(left.rows, left.rows);
  }

  static int64_t high_tiles(const Left& left) { return left.stride / kInnerStep * kTile; }

  static void multiply(const Left& left, const Right& right, int32_t* sums) {
    const uint8_t* low = left.space + right.first_step * kTile;
    const uint8_t* high = low + high_tiles(left);
    zero_block(true);
    for (int s = 0; s < right.steps; ++s, low += kTile, high += kTile) {
      multiply_step({low, high, right.panel[0][s], right.panel[1][s], kTile});
    }
    store_block(sums, kTileColumns * 4, true);
    for (int i = 0; i < left.rows * kTileColumns; i += kLanes) {
      i32x8 a, b;
      __builtin_memcpy(&a, sums + i, sizeof a);
      __builtin_memcpy(&b, sums + kTileRows * kTileColumns + i, sizeof b);
      a += b << 8;
      __builtin_memcpy(sums + i, &a, sizeof a);
    }
  }
};

inline void attention_segment(const AttentionTask& task, int segment, const Partial& out, const Scratch& scratch) {
  if (task.kv.layout.int8()) return attention_int8<TileProducts>(task, segment, out, scratch);
  const int total = task.positions * task.group;
  uint8_t* queries = scratch.data;
  uint8_t* weights = queries + int64_t{2} * task.kv.layout.head_dim / 32 * kTile;
  float* scores = reinterpret_cast<float*>(weights + 2 * kWeightTiles);
  for (int first = 0; first < total; first += kBlockRows) {
    TileStrip strip = {task, segment, first, smaller(kBlockRows, total - first), {}, {}, 0, 0, queries, weights, scores};
    attention_strip(strip, out);
  }
}
