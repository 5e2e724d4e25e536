// Work on single rows: embedding, norm, quantization, rope, cache append, merging attention partials. Included by each variant
// after vector_inl.h inside its own anonymous namespace. `Rows` (the variant's) stores quantized values.
//
// A variant gives a type with
//   static void store_int(const QuantRows&, const Linear&, int row, const float* x, float inv)   q = rint(x * inv)
//   static void store_bf16(const QuantRows&, const Linear&, int row, const float* x)

inline const float* at(const FloatView& v, int64_t row, int column) {
  return v.data + (column / v.width) * v.block_stride + row * v.row_stride + column % v.width;
}

// Copies columns [first, first + count) of a row; first and count are multiples of 16.
inline void gather(const FloatView& v, int64_t row, int first, int count, float* out) {
  for (int c = 0; c < count; c += 16) {
    const float* from = at(v, row, first + c);
    store8(out + c, load8(from));
    store8(out + c + kLanes, load8(from + kLanes));
  }
}

// step = max(max|narrow| / 127, max|wide| / 32512)
inline float row_step(const float* x, int k, const uint32_t* wide_mask) {
  f32x8 narrow = splat(0), wide = splat(0);
  for (int c = 0; c < k; c += kLanes) {
    i32x8 mask;
    __builtin_memcpy(&mask, wide_mask + c, sizeof mask);
    const i32x8 magnitude = bits(load8(x + c)) & 0x7FFFFFFF;
    narrow = max8(from_bits(magnitude & ~mask), narrow);
    wide = max8(from_bits(magnitude & mask), wide);
  }
  const float a = max_lanes(narrow) / 127.0f, b = max_lanes(wide) / 32512.0f;
  const float step = a > b ? a : b;
  return step < kMinStep ? 0.0f : step;
}

template <class Rows>
inline void quantize(const float* x, const Linear& consumer, const QuantRows& out, int row) {
  if (consumer.format == Format::bf16) {
    Rows::store_bf16(out, consumer, row, x);
    return;
  }
  const float step = row_step(x, consumer.k, consumer.wide_mask);
  out.step[row] = step;
  Rows::store_int(out, consumer, row, x, step > 0 ? 1.0f / step : 0.0f);
}

inline float inverse_rms(f32x8 even, f32x8 odd, int count, float eps) {
  const float mean = sum_lanes(even + odd) / static_cast<float>(count);
  return 1.0f / __builtin_sqrtf(mean + eps);
}

// residual += norm(delta) of one row
inline void add_normed_delta(const NormTask& task, int row, float* x) {
  f32x8 even = splat(0), odd = splat(0);
  for (int c = 0; c < task.hidden; c += 16) {
    const float* d = at(task.delta, row, c);
    even += load8(d) * load8(d);
    odd += load8(d + kLanes) * load8(d + kLanes);
  }
  const float inv = inverse_rms(even, odd, task.hidden, task.eps);
  for (int c = 0; c < task.hidden; c += kLanes) {
    store8(x + c, load8(x + c) + (load8(at(task.delta, row, c)) * inv) * load8(task.delta_weight + c));
  }
}

template <class Rows>
void norm_row(const NormTask& task, int row, const Scratch& scratch) {
  float* x = task.residual + int64_t{row} * task.hidden;
  float* y = task.normed ? task.normed + int64_t{row} * task.hidden : reinterpret_cast<float*>(scratch.data);
  const bool add = task.delta.data && !task.delta_weight;
  if (task.delta_weight) add_normed_delta(task, row, x);
  f32x8 even = splat(0), odd = splat(0);
  for (int c = 0; c < task.hidden; c += 16) {
    f32x8 a = load8(x + c), b = load8(x + c + kLanes);
    if (add) {
      const float* d = at(task.delta, row, c);
      a += load8(d);
      b += load8(d + kLanes);
      store8(x + c, a);
      store8(x + c + kLanes, b);
    }
    even += a * a;
    odd += b * b;
  }
  const float inv = inverse_rms(even, odd, task.hidden, task.eps);
  for (int c = 0; c < task.hidden; c += kLanes) store8(y + c, (load8(x + c) * inv) * load8(task.weight + c));
  quantize<Rows>(y, *task.consumer, task.out, row);
}

template <class Rows>
void layer_norm_row(const LayerNormTask& task, int row) {
  float* x = task.residual + int64_t{row} * task.hidden;
  f32x8 even = splat(0), odd = splat(0);
  for (int c = 0; c < task.hidden; c += 16) {
    f32x8 a = load8(x + c), b = load8(x + c + kLanes);
    if (task.delta.data) {
      const float* d = at(task.delta, row, c);
      a += load8(d) + load8(task.delta_bias + c);
      b += load8(d + kLanes) + load8(task.delta_bias + c + kLanes);
      store8(x + c, a);
      store8(x + c + kLanes, b);
    }
    even += a;
    odd += b;
  }
  const float mean = sum_lanes(even + odd) / static_cast<float>(task.hidden);
  even = odd = splat(0);
  for (int c = 0; c < task.hidden; c += 16) {
    const f32x8 a = load8(x + c) - mean, b = load8(x + c + kLanes) - mean;
    even += a * a;
    odd += b * b;
  }
  const float inv = inverse_rms(even, odd, task.hidden, task.eps);
  for (int c = 0; c < task.hidden; c += kLanes) {
    store8(x + c, ((load8(x + c) - mean) * inv) * load8(task.weight + c) + load8(task.bias + c));
  }
  if (task.consumer) quantize<Rows>(x, *task.consumer, task.out, row);
}

template <class Rows>
void gelu_row(const GeluTask& task, int row, const Scratch& scratch) {
  float* x = reinterpret_cast<float*>(scratch.data);
  const int count = task.consumer->k;
  gather(task.x, row, 0, count, x);
  for (int c = 0; c < count; c += kLanes) store8(x + c, gelu_erf8(load8(x + c) + load8(task.bias + c)));
  quantize<Rows>(x, *task.consumer, task.out, row);
}

template <class Rows>
void quantize_row(const QuantTask& task, int row, const Scratch& scratch) {
  float* x = reinterpret_cast<float*>(scratch.data);
  gather(task.x, row, 0, task.consumer->k, x);
  quantize<Rows>(x, *task.consumer, task.out, row);
}

inline void dequantize_q8_0(const uint8_t* blocks, int count, float* out) {
  for (int c = 0; c < count; c += 32, blocks += 34) {
    uint16_t half;
    __builtin_memcpy(&half, blocks, 2);
    const float d = from_f16(half);
    for (int i = 0; i < 32; ++i) out[c + i] = d * static_cast<float>(static_cast<int8_t>(blocks[2 + i]));
  }
}

inline void read_embedding(const EmbedTask& task, int token, float* out) {
  const uint8_t* row = task.rows + token * task.row_bytes;
  switch (task.format) {
    case EmbeddingFormat::f32:
      __builtin_memcpy(out, row, sizeof(float) * static_cast<size_t>(task.hidden));
      return;
    case EmbeddingFormat::f16:
      for (int c = 0; c < task.hidden; ++c) out[c] = from_f16(static_cast<uint16_t>(row[2 * c] | row[2 * c + 1] << 8));
      return;
    case EmbeddingFormat::bf16:
      for (int c = 0; c < task.hidden; ++c) out[c] = from_bf16(static_cast<bf16>(row[2 * c] | row[2 * c + 1] << 8));
      return;
    case EmbeddingFormat::q8_0:
      dequantize_q8_0(row, task.hidden, out);
  }
}

inline void embed_row(const EmbedTask& task, int token, float* out) {
  read_embedding(task, token, out);
  if (task.scale == 1) return;
  for (int c = 0; c < task.hidden; c += kLanes) store8(out + c, load8(out + c) * task.scale);
}

// Half-split rotation of one head in place: pairs (i, i + rope_dim/2).
inline void rotate(float* x, int rope_dim, const float* cos, const float* sin) {
  const int half = rope_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// What the cache stores: never infinite or NaN, so that a broken sequence cannot poison the next owner of its blocks.
inline bf16 to_cache(float x) {
  const bf16 v = to_bf16(x);
  return (v & 0x7F80) == 0x7F80 ? bf16{0} : v;
}

inline void append_key(uint8_t* keys, int slot, const float* x, int head_dim) {
  uint8_t* out = keys + (slot / 16) * 32 * head_dim + (slot % 16) * 4;
  for (int d = 0; d < head_dim; d += 2) {
    const bf16 pair[2] = {to_cache(x[d]), to_cache(x[d + 1])};
    __builtin_memcpy(out + d * 32, pair, 4);
  }
}

inline void append_value(uint8_t* values, int slot, const float* x, int head_dim) {
  for (int d = 0; d < head_dim; ++d) {
    const bf16 v = to_cache(x[d]);
    __builtin_memcpy(values + (d / 16) * kBlockTokens * 32 + (slot / 2) * 64 + (d % 16) * 4 + (slot % 2) * 2, &v, 2);
  }
}

// Infinities and NaN become 0.
inline f32x8 finite8(f32x8 x) {
  const i32x8 exponent = {0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000};
  return from_bits(bits(x) & ((bits(x) & exponent) != exponent));
}

// One head's key or value as integers of one step, which comes back.
inline float to_cache8(const float* x, int head_dim, int8_t* q) {
  f32x8 top = splat(0);
  for (int d = 0; d < head_dim; d += kLanes) top = max8(abs8(finite8(load8(x + d))), top);
  const float wanted = max_lanes(top) / 127.0f, step = wanted < kMinStep ? 0.0f : wanted;
  const float inv = step > 0 ? 1.0f / step : 0.0f;
  for (int d = 0; d < head_dim; d += kLanes) {
    const i8x8 v = __builtin_convertvector(round8(finite8(load8(x + d)) * inv), i8x8);
    __builtin_memcpy(q + d, &v, sizeof v);
  }
  return step;
}

inline void append_key8(const KvView& kv, const RowPlace& place, int head, const float* x, int8_t* q) {
  const int head_dim = kv.layout.head_dim, slot = place.position % kBlockTokens;
  kv.key_steps(place.block, head)[slot] = to_cache8(x, head_dim, q);
  uint8_t* out = kv.keys(place.block, head) + slot / 16 * 16 * head_dim + slot % 16 * 4;
  for (int d = 0; d < head_dim; d += 4) __builtin_memcpy(out + d * 16, q + d, 4);
}

inline void append_value8(const KvView& kv, const RowPlace& place, int head, const float* x, int8_t* q) {
  const int head_dim = kv.layout.head_dim, slot = place.position % kBlockTokens;
  kv.value_steps(place.block, head)[slot] = to_cache8(x, head_dim, q);
  uint8_t* out = kv.values(place.block, head) + slot / 4 * 64 + slot % 4;
  for (int d = 0; d < head_dim; ++d) out[d / 16 * kBlockTokens * 16 + d % 16 * 4] = static_cast<uint8_t>(q[d]);
}

inline void norm_head(float* x, const float* weight, int head_dim, float eps) {
  f32x8 even = splat(0), odd = splat(0);
  for (int c = 0; c < head_dim; c += 16) {
    even += load8(x + c) * load8(x + c);
    odd += load8(x + c + kLanes) * load8(x + c + kLanes);
  }
  const float inv = inverse_rms(even, odd, head_dim, eps);
  for (int c = 0; c < head_dim; c += kLanes) store8(x + c, (load8(x + c) * inv) * load8(weight + c));
}

// `x` is followed by room for its integers.
inline void store_key(const KvView& kv, const RowPlace& place, int head, float* x) {
  const int head_dim = kv.layout.head_dim;
  if (kv.layout.int8()) return append_key8(kv, place, head, x, reinterpret_cast<int8_t*>(x + head_dim));
  append_key(kv.keys(place.block, head), place.position % kBlockTokens, x, head_dim);
}

inline void store_value(const KvView& kv, const RowPlace& place, int head, float* x) {
  const int head_dim = kv.layout.head_dim;
  if (kv.layout.int8()) return append_value8(kv, place, head, x, reinterpret_cast<int8_t*>(x + head_dim));
  append_value(kv.values(place.block, head), place.position % kBlockTokens, x, head_dim);
}

// Head `head` of a row of qkv: with its bias, and normed when there is a norm.
inline void load_head(const RopeTask& task, int row, int head, const float* norm, float* out) {
  const int head_dim = task.kv.layout.head_dim, first = head * head_dim;
  gather(task.qkv, row, first, head_dim, out);
  if (task.bias) {
    for (int c = 0; c < head_dim; c += kLanes) store8(out + c, load8(out + c) + load8(task.bias + first + c));
  }
  if (norm) norm_head(out, norm, head_dim, task.eps);
}

inline void rope_row(const RopeTask& task, int row, const Scratch& scratch) {
  const int head_dim = task.kv.layout.head_dim, kv_heads = task.kv.layout.kv_heads;
  const RowPlace place = task.places[row];
  const float* cos = task.cos + int64_t{place.position} * (task.rope_dim / 2);
  const float* sin = task.sin + int64_t{place.position} * (task.rope_dim / 2);
  float* q = task.q + int64_t{row} * task.heads * head_dim;
  for (int h = 0; h < task.heads; ++h, q += head_dim) {
    load_head(task, row, h, task.q_norm, q);
    rotate(q, task.rope_dim, cos, sin);
    for (int c = 0; c < head_dim; c += kLanes) store8(q + c, load8(q + c) * task.q_scale);
  }
  float* x = reinterpret_cast<float*>(scratch.data);
  for (int h = 0; h < kv_heads; ++h) {
    load_head(task, row, task.heads + h, task.k_norm, x);
    rotate(x, task.rope_dim, cos, sin);
    store_key(task.kv, place, h, x);
    load_head(task, row, task.heads + kv_heads + h, nullptr, x);
    store_value(task.kv, place, h, x);
  }
}

// One merge for every path: weights are 2^(max - common max); an empty side changes nothing.
inline void merge_row(const Partial& into, const Partial& next, int row, int head_dim) {
  if (next.sum[row] == 0) return;
  const float* from = next.out + int64_t{row} * head_dim;
  float* out = into.out + int64_t{row} * head_dim;
  if (into.sum[row] == 0) {
    into.max[row] = next.max[row];
    into.sum[row] = next.sum[row];
    __builtin_memcpy(out, from, sizeof(float) * static_cast<size_t>(head_dim));
    return;
  }
  const float a = into.max[row], b = next.max[row];
  const float top = a > b ? a : b;
  const float old_weight = exp2_1(a - top), new_weight = exp2_1(b - top);
  into.max[row] = top;
  into.sum[row] = into.sum[row] * old_weight + next.sum[row] * new_weight;
  for (int d = 0; d < head_dim; d += kLanes) store8(out + d, load8(out + d) * old_weight + load8(from + d) * new_weight);
}

inline void attention_merge(const Partial& into, const Partial& next, int rows, int head_dim) {
  for (int row = 0; row < rows; ++row) merge_row(into, next, row, head_dim);
}

inline void attention_finish(const Partial& from, int row, int head_dim, float* out) {
  const float* x = from.out + int64_t{row} * head_dim;
  const float inv = 1.0f / from.sum[row];
  for (int d = 0; d < head_dim; d += kLanes) store8(out + d, load8(x + d) * inv);
}
