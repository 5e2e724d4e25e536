// One attention segment over an int8 cache, for every variant. Included after strip_inl.h inside a variant's anonymous namespace.
//
// Both products are exact integers, of 16-bit rows with the cache's 8-bit ones. For a query row:
//   q16 = rint(q / q_step), q_step = max|q| / 32512             (less than 32512 where sums would leave 32 bits)
//   score[t] = (float(sum_d q16[d] * K8[t][d]) * key_step[t]) * q_step
//   p = 2^(s - max) and its sum as in strip_inl.h
//   w = p * value_step[t];  w16 = rint(w / w_step), w_step = max w / 32512
//   out[d] = float(sum_t w16[t] * V8[t][d]) * w_step
// Nothing is fused, so a row's bits depend neither on its company nor on the variant. 16 bits for q and w leave the rounding of K and V
// as the only error that counts.
//
// A variant's `Products` give
//   kRows, kSpaceBytes(inner)       rows of a strip; memory a packed left operand takes
//   pack(Left&, inner)              anything the product wants to do once to the left rows
//   multiply(left, right, sums)     sums[r * 32 + c] = dot products with 32 columns, columns 0-15 and 16-31 from two panels

constexpr int kProductColumns = 32;
constexpr int kInnerStep = 64;                // inner values of a panel: 16 quads of 4
constexpr int kMaxInnerSteps = 1024 / kInnerStep;  // head_dim or kSegmentTokens
constexpr int kWideLimit = 32512;             // 127 * 256: the high byte of a 16-bit value fits 8 bits

// Rows of 16-bit integers, `stride` apart, padded with zeros to whole inner steps.
struct Left {
  int16_t* x;
  int64_t stride;
  int rows;
  uint8_t* space;
};

// Two times 16 columns: by inner step, panels [quad][16 columns][4].
struct Right {
  const uint8_t* panel[2][kMaxInnerSteps];
  const uint8_t* ahead[kMaxInnerSteps];  // by inner step, as many bytes as its panels have: what to bring in meanwhile
  int first_step, steps;  // inner steps of the left rows
  int quads;              // that matter; the left rows are zero behind them
};

inline int steps_quads(const Right& right, int step) {
  const int left = right.quads - step * (kInnerStep / 4);
  return left < kInnerStep / 4 ? left : kInnerStep / 4;
}

// Shared by the variants for AVX2 and for any CPU: 16-bit products of pairs.
struct VectorProducts {
  static constexpr int kRows = 6;
  static size_t space_bytes(int) { return 0; }
  static void pack(const Left&, int) {}
  static void multiply(const Left& left, const Right& right, int32_t* sums);
};

#if defined(__AVX2__)

// R rows x 4 * C columns, from byte `at` of each quad on; register `c` holds two halves of each of its four columns.
template <int R, int C>
__attribute__((noinline)) void multiply_quads(const Left& left, int side, const Right& right, int at, int32_t* sums) {
  constexpr int kAheadBytes = 16 * C;  // as fast as the panels are used
  __m256i acc[R][C];
  _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
    _Pragma("GCC unroll 4") for (int c = 0; c < C; ++c) acc[r][c] = _mm256_setzero_si256();
  }
  for (int s = 0; s < right.steps; ++s) {
    const uint8_t *panel = right.panel[side][s] + at, *ahead = right.ahead[s] + (64 * side + at) * (kInnerStep / 4);
    const int16_t* x = left.x + (right.first_step + s) * kInnerStep;
    for (const int16_t* end = x + 4 * steps_quads(right, s); x < end; x += 4, panel += 64, ahead += kAheadBytes) {
      __builtin_prefetch(ahead, 0, 2);
      __m256i w[C];
      _Pragma("GCC unroll 4") for (int c = 0; c < C; ++c) {
        w[c] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + 16 * c)));
      }
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        int64_t quad;
        __builtin_memcpy(&quad, x + r * left.stride, sizeof quad);
        const __m256i value = _mm256_set1_epi64x(quad);
        _Pragma("GCC unroll 4") for (int c = 0; c < C; ++c) {
          acc[r][c] = _mm256_add_epi32(acc[r][c], _mm256_madd_epi16(value, w[c]));
          __asm__("" : "+x"(acc[r][c]));  // row by row, or it spills
        }
      }
    }
  }
  _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
    _Pragma("GCC unroll 4") for (int c = 0; c < C; c += 2) {
      const __m256i columns = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[r][c], acc[r][c + 1]), 0xD8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kProductColumns + at / 4 + 4 * c), columns);
    }
  }
}

template <int R>
void multiply_rows(const Left& left, const Right& right, int32_t* sums) {
  constexpr int kRegisters = R <= 2 ? 4 : 2;
  for (int side = 0; side < 2; ++side, sums += 16) {
    for (int at = 0; at < 64; at += 16 * kRegisters) multiply_quads<R, kRegisters>(left, side, right, at, sums);
  }
}

inline void VectorProducts::multiply(const Left& left, const Right& right, int32_t* sums) {
  switch (left.rows) {
    case 1: return multiply_rows<1>(left, right, sums);
    case 2: return multiply_rows<2>(left, right, sums);
    case 3: return multiply_rows<3>(left, right, sums);
    case 4: return multiply_rows<4>(left, right, sums);
    case 5: return multiply_rows<5>(left, right, sums);
    default: return multiply_rows<6>(left, right, sums);
  }
}

#else

inline void add_quads(const int16_t* x, const uint8_t* panel, int quads, int32_t* sums) {
  for (int k = 0; k < quads; ++k, panel += 64) {
    int8_t w[64];
    __builtin_memcpy(w, panel, sizeof w);
    const int32_t a = x[4 * k], b = x[4 * k + 1], c = x[4 * k + 2], d = x[4 * k + 3];
    for (int j = 0; j < 16; ++j) sums[j] += (w[4 * j] * a + w[4 * j + 1] * b) + (w[4 * j + 2] * c + w[4 * j + 3] * d);
  }
}

inline void VectorProducts::multiply(const Left& left, const Right& right, int32_t* sums) {
  for (int r = 0; r < left.rows; ++r) {
    int32_t* row = sums + r * kProductColumns;
    __builtin_memset(row, 0, kProductColumns * sizeof *row);
    for (int s = 0; s < right.steps; ++s) {
      const int16_t* x = left.x + r * left.stride + (right.first_step + s) * kInnerStep;
      for (int side = 0; side < 2; ++side) add_quads(x, right.panel[side][s], steps_quads(right, s), row + 16 * side);
    }
  }
}

#endif

inline f32x8 largest(const float* x, int count) {
  f32x8 top = splat(0);
  for (int i = 0; i < count; i += kLanes) top = max8(abs8(load8(x + i)), top);
  return top;
}

// 16-bit integers of `count` floats (a multiple of 8), the largest magnitudes of which are `top`; their step comes back.
inline float to_wide(const float* x, f32x8 top, int count, int limit, int16_t* out) {
  const float wanted = max_lanes(top) / static_cast<float>(limit), step = wanted < kMinStep ? 0.0f : wanted;
  const float inv = step > 0 ? 1.0f / step : 0.0f;
  for (int i = 0; i < count; i += kLanes) {
    const i16x8 q = narrow16(round8(load8(x + i) * inv));
    __builtin_memcpy(out + i, &q, sizeof q);
  }
  return step;
}

// Memory of a strip.
struct Strip8 {
  const Strip& rows;
  Left queries, weights;
  float* scores;       // [rows][kSegmentTokens]
  int32_t* sums;       // [2 * rows][kProductColumns]
  float steps[kStripRows];

  const KvView& kv;
  int kv_head;
  const int32_t* blocks;  // of the segment
  const AttentionTask::Next& next;
  int head_dim() const { return kv.layout.head_dim; }
  // Keys to bring in while block `s` is used; `otherwise` when there are none.
  const uint8_t* next_keys(int s, const uint8_t* otherwise) const {
    return s < next.count ? kv.keys(next.blocks[s], next.kv_head) : otherwise;
  }
};

inline int64_t padded_dim(int head_dim) { return round_up(head_dim, kInnerStep); }

template <class Products>
size_t attention8_bytes(int head_dim) {
  const size_t inner = static_cast<size_t>(padded_dim(head_dim)) + kSegmentTokens;
  const size_t row = inner * sizeof(int16_t) + kSegmentTokens * sizeof(float) + 2 * kProductColumns * sizeof(int32_t);
  return Products::kRows * row + Products::space_bytes(static_cast<int>(padded_dim(head_dim))) + Products::space_bytes(kSegmentTokens);
}

template <class Products>
Strip8 lay_out(const AttentionTask& task, const Strip& rows, int segment, const Scratch& scratch) {
  const int inner = static_cast<int>(padded_dim(task.kv.layout.head_dim));
  uint8_t* at = scratch.data;
  const auto take = [&at](size_t bytes) {
    at += bytes;
    return at - bytes;
  };
  uint8_t* query_space = take(Products::space_bytes(inner));
  uint8_t* weight_space = take(Products::space_bytes(kSegmentTokens));
  int32_t* sums = reinterpret_cast<int32_t*>(take(2 * Products::kRows * kProductColumns * sizeof(int32_t)));
  float* scores = reinterpret_cast<float*>(take(Products::kRows * kSegmentTokens * sizeof(float)));
  int16_t* queries = reinterpret_cast<int16_t*>(take(Products::kRows * sizeof(int16_t) * static_cast<size_t>(inner)));
  int16_t* weights = reinterpret_cast<int16_t*>(take(Products::kRows * kSegmentTokens * sizeof(int16_t)));
  return {rows, {queries, inner, rows.rows, query_space}, {weights, kSegmentTokens, rows.rows, weight_space}, scores, sums, {},
          task.kv, task.kv_head, task.block_table + segment * (kSegmentTokens / kBlockTokens), task.next};
}

template <class Products>
void quantize_queries(Strip8& strip) {
  const int head_dim = strip.head_dim(), inner = static_cast<int>(strip.queries.stride);
  const int limit = head_dim <= 512 ? kWideLimit : kWideLimit / 2;
  for (int r = 0; r < strip.rows.rows; ++r) {
    int16_t* to = strip.queries.x + r * inner;
    strip.steps[r] = to_wide(strip.rows.q[r], largest(strip.rows.q[r], head_dim), head_dim, limit, to);
    for (int d = head_dim; d < inner; ++d) to[d] = 0;
  }
  Products::pack(strip.queries, inner);
}

inline f32x8 product8(const int32_t* sums) {
  i32x8 sum;
  __builtin_memcpy(&sum, sums, sizeof sum);
  return __builtin_convertvector(sum, f32x8);
}

template <class Products>
void scores_int8(const Strip8& strip) {
  const int head_dim = strip.head_dim();
  Right right;
  right.first_step = 0, right.steps = static_cast<int>(strip.queries.stride) / kInnerStep, right.quads = head_dim / 4;
  for (int t = strip.rows.start; t < strip.rows.longest; t += kProductColumns) {
    const int32_t block = strip.blocks[t / kBlockTokens];
    const uint8_t* keys = strip.kv.keys(block, strip.kv_head) + t % kBlockTokens * head_dim;
    const uint8_t* values = strip.kv.values(block, strip.kv_head) + t % kBlockTokens * head_dim;
    for (int s = 0; s < right.steps; ++s) {
      right.panel[0][s] = keys + s * kInnerStep * 16;
      right.panel[1][s] = keys + s * kInnerStep * 16 + 16 * head_dim;
      right.ahead[s] = values + s * kInnerStep * kProductColumns;
    }
    Products::multiply(strip.queries, right, strip.sums);
    const float* key_steps = strip.kv.key_steps(block, strip.kv_head) + t % kBlockTokens;
    for (int r = 0; r < strip.rows.rows; ++r) {
      float* to = strip.scores + r * kSegmentTokens + t;
      const float step = strip.steps[r];
      for (int c = 0; c < kProductColumns; c += kLanes) {
        store8(to + c, (product8(strip.sums + r * kProductColumns + c) * load8(key_steps + c)) * step);
      }
    }
  }
}

// p := p * steps of the values, keys [start, end) of one row; the largest come back.
inline f32x8 scale_weights(float* p, const float* const* steps, int start, int end) {
  f32x8 top = splat(0);
  for (int block = start; block < end; block += kBlockTokens) {
    const float* step = steps[block / kBlockTokens];
    const int count = end - block < kBlockTokens ? end - block : kBlockTokens;
    for (int t = 0; t < count; t += kLanes) {
      const f32x8 w = load8(p + block + t) * load8(step + t);
      store8(p + block + t, w);
      top = max8(w, top);
    }
  }
  return top;
}

// Softmax weights times the steps of their values, as 16-bit integers. `width`: whole blocks.
template <class Products>
void quantize_weights(Strip8& strip, int width) {
  const int start = strip.rows.start, computed = static_cast<int>(round_up(strip.rows.longest, 16));
  const float* steps[kSegmentTokens / kBlockTokens];
  for (int b = start / kBlockTokens; b < width / kBlockTokens; ++b) steps[b] = strip.kv.value_steps(strip.blocks[b], strip.kv_head);
  for (int r = 0; r < strip.rows.rows; ++r) {
    float* p = strip.scores + r * kSegmentTokens;
    int16_t* to = strip.weights.x + r * kSegmentTokens;
    const f32x8 top = scale_weights(p, steps, start, computed);
    strip.steps[r] = to_wide(p + start, top, computed - start, kWideLimit, to + start);
    for (int t = computed; t < width; ++t) to[t] = 0;
  }
  Products::pack(strip.weights, width);
}

// The steps of the keys and values that come next: a few lines behind them.
inline void prefetch_next_steps(const Strip8& strip) {
  for (int s = 0; s < strip.next.count; ++s) {
    const uint8_t* steps = reinterpret_cast<const uint8_t*>(strip.kv.key_steps(strip.next.blocks[s], strip.next.kv_head));
    for (int i = 0; i < 2 * kBlockTokens * static_cast<int>(sizeof(float)); i += kCacheLine) __builtin_prefetch(steps + i, 0, 2);
  }
}

template <class Products>
void values_int8(const Strip8& strip, int width, float* out) {
  constexpr int kPanelBytes = kBlockTokens * 16;  // 16 dimensions of a block
  Right right;
  right.first_step = strip.rows.start / kBlockTokens, right.steps = width / kBlockTokens - right.first_step;
  right.quads = static_cast<int>(ceil_div(strip.rows.longest - strip.rows.start, 4));
  prefetch_next_steps(strip);
  for (int d = 0; d < strip.head_dim(); d += kProductColumns) {
    for (int s = 0; s < right.steps; ++s) {
      right.panel[0][s] = strip.kv.values(strip.blocks[right.first_step + s], strip.kv_head) + d / 16 * kPanelBytes;
      right.panel[1][s] = right.panel[0][s] + kPanelBytes;
      right.ahead[s] = strip.next_keys(s, right.panel[0][s]) + d / 16 * kPanelBytes;
    }
    Products::multiply(strip.weights, right, strip.sums);
    for (int r = 0; r < strip.rows.rows; ++r) {
      float* to = out + r * strip.head_dim() + d;
      const float step = strip.steps[r];
      for (int c = 0; c < kProductColumns; c += kLanes) store8(to + c, product8(strip.sums + r * kProductColumns + c) * step);
    }
  }
}

template <class Products>
void strip_int8(const AttentionTask& task, Strip8& strip, int first, const Partial& out) {
  quantize_queries<Products>(strip);
  scores_int8<Products>(strip);
  for (int r = 0; r < strip.rows.rows; ++r) {
    float* s = strip.scores + r * kSegmentTokens;
    const int start = strip.rows.start, visible = strip.rows.visible[r];
    if (task.softcap > 0 && visible > 0) softcap(s + start, static_cast<int>(round_up(visible - start, kLanes)), task.softcap);
    row_softmax(strip.rows, r, s, out.max + first + r, out.sum + first + r);
  }
  const int width = static_cast<int>(round_up(strip.rows.longest, kBlockTokens));
  quantize_weights<Products>(strip, width);
  values_int8<Products>(strip, width, out.out + int64_t{first} * strip.head_dim());
}

template <class Products>
void attention_int8(const AttentionTask& task, int segment, const Partial& out, const Scratch& scratch) {
  const int total = task.positions * task.group, head_dim = task.kv.layout.head_dim;
  for (int first = 0; first < total; first += Products::kRows) {
    const Strip rows = make_strip(task, segment, first, total - first < Products::kRows ? total - first : Products::kRows);
    if (rows.longest == 0) {
      for (int r = 0; r < rows.rows; ++r) row_softmax(rows, r, nullptr, out.max + first + r, out.sum + first + r);
      __builtin_memset(out.out + int64_t{first} * head_dim, 0, sizeof(float) * static_cast<size_t>(rows.rows * head_dim));
      continue;
    }
    Strip8 strip = lay_out<Products>(task, rows, segment, scratch);
    strip_int8<Products>(task, strip, first, out);
  }
}
