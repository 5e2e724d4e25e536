// Integer and bf16 GEMM for machines without a dot-product unit: activations are int16 rows, weights widen to int16. Included after
// vector_inl.h and rows_inl.h inside a variant's anonymous namespace. Packed weights are panels of 16 outputs:
//
//   int8  [N/16][K/2][16 outputs][2 inputs]                                      8 bits a weight
//   bf16  [N/16][K/2][16 outputs][2 inputs]
//   nib4  [N/16][K/32] groups of 320 bytes: a[16] b[16] int16, then 8 x 32 bytes  5 bits a weight
//         a and b are stored in the column order 0-3 8-11 4-7 12-15 (unpacklo/hi with itself then doubles columns 0-7, 8-15);
//         32 bytes are 16 words, word l = output l/2, input l%2; nibble 0: outputs 0-7 of input pair 2p,
//         nibble 1: outputs 8-15 of pair 2p, nibble 2: outputs 0-7 of pair 2p+1, nibble 3: outputs 8-15 of pair 2p+1
//
// Quantized rows: int16 [M][K], or for bf16 weights float32 [M][K] (rounded to bf16).
//
// A GEMM task is 32 outputs (or 16, where there would be too few tasks for the team) x a block of rows. Few rows: weights are widened in registers as they stream by. More rows: a panel is
// widened once into scratch and swept over the rows. The integer sums are exact, so both give the same bits.
//
// Ops of a variant:
//   kRows                                      rows of the register tile
//   Products                                   of attention over an int8 cache
//   row_stride(w, m)                           bytes between quantized rows
//   dot_bf16(rows, x[], panel, pairs, out, out_stride, first)
//   products(tile, work, sums)                 the integer sums of a task: widened_products, given the following, or its own
//   kStreamNibbles, kStreamBytes               up to this many rows weights are widened as they stream, anew for each strip
//   stream_int8 / stream_nib4(rows, x, k, panel, sums)   sums[r * 32 + 0..15] = dot products over all k, rows <= kRows
//   expand_int8 / expand_nib4(panel, k0, k1, out)   int16 [(k1-k0)/2][16][2]
//   dot_int16(rows, x, stride, panel, pairs, sums, first, ahead)   as dot_bf16 for integers; sums have a row stride of 32

constexpr int kPanel = 16;
constexpr int kPanelChunk = 512;          // inputs widened at a time: 16 KB of scratch, half of L1
constexpr int kRowBlockBytes = 192 << 10;  // quantized rows of a task stay in L2
constexpr int kMaxRowBlock = 256;
constexpr int kNibbleGroupBytes = 2 * 32 + 8 * 32;

inline int64_t panel_bytes(Format format, int k) {
  if (format == Format::nib4) return int64_t{k} / kNibbleGroup * kNibbleGroupBytes;
  return int64_t{k} * kPanel * (format == Format::bf16 ? 2 : 1);
}

inline size_t packed_bytes(Format format, int n, int k, int) {
  return static_cast<size_t>(round_up(n, kTileColumns) / kPanel * panel_bytes(format, k));
}

inline size_t tile_bytes(Format format, int k, int) { return static_cast<size_t>(kTileColumns / kPanel * panel_bytes(format, k)); }

// Index of (output, input) inside its panel, in elements.
inline int64_t pair_index(int output, int input) { return (int64_t{input} / 2 * kPanel + output) * 2 + input % 2; }

template <class T>
void pack_pairs(const T* w, int n, int k, uint8_t* out) {
  T* panel = reinterpret_cast<T*>(out);
  for (int first = 0; first < round_up(n, kTileColumns); first += kPanel, panel += int64_t{k} * kPanel) {
    for (int j = 0; j < kPanel; ++j) {
      for (int c = 0; c < k; ++c) panel[pair_index(j, c)] = first + j < n ? w[int64_t{first + j} * k + c] : T{0};
    }
  }
}

inline void pack_int8(const int8_t* w, int n, int k, const int32_t*, int, uint8_t* out) { pack_pairs(w, n, k, out); }
inline void pack_bf16(const bf16* w, int n, int k, uint8_t* out) { pack_pairs(w, n, k, out); }

// Where output j's a and b stand in a group: columns 0-3 8-11 4-7 12-15.
inline int factor_index(int j) { return j < 4 || j >= 12 ? j : j < 8 ? j + 4 : j - 4; }

inline void pack_nibble_output(const uint8_t* q, int16_t a, int16_t b, int j, uint8_t* group) {
  __builtin_memcpy(group + 2 * factor_index(j), &a, 2);
  __builtin_memcpy(group + 32 + 2 * factor_index(j), &b, 2);
  for (int c = 0; c < kNibbleGroup; ++c) {
    const int word = (j % 8) * 2 + c % 2, nibble = (c / 2) % 2 * 2 + j / 8;
    group[64 + c / 4 * 32 + word * 2 + nibble / 2] |= static_cast<uint8_t>((q[c] & 15) << (nibble % 2 * 4));
  }
}

inline void pack_nib4(const uint8_t* q, const int16_t* a, const int16_t* b, int n, int k, const int32_t*, int, uint8_t* out) {
  const int groups = k / kNibbleGroup;
  __builtin_memset(out, 0, packed_bytes(Format::nib4, n, k, 0));
  for (int row = 0; row < n; ++row) {
    uint8_t* panel = out + row / kPanel * panel_bytes(Format::nib4, k);
    for (int g = 0; g < groups; ++g) {
      const int64_t at = int64_t{row} * groups + g;
      pack_nibble_output(q + at * kNibbleGroup, a[at], b[at], row % kPanel, panel + g * kNibbleGroupBytes);
    }
  }
}

inline int64_t row_stride_bytes(Format format, int k) { return int64_t{k} * (format == Format::bf16 ? 4 : 2); }
inline size_t rows_bytes(Format format, int m, int k, int) {
  return static_cast<size_t>(round_up(m, 32) * row_stride_bytes(format, k));
}

struct Int16Rows {
  static void store_int(const QuantRows& out, const Linear& consumer, int row, const float* x, float inv) {
    uint8_t* to = out.data + row * row_stride_bytes(consumer.format, consumer.k);
    for (int c = 0; c < consumer.k; c += kLanes) {
      const i16x8 q = narrow16(round8(load8(x + c) * inv));
      __builtin_memcpy(to + c * 2, &q, sizeof q);
    }
  }
  static void store_bf16(const QuantRows& out, const Linear& consumer, int row, const float* x) {
    float* to = reinterpret_cast<float*>(out.data + row * row_stride_bytes(consumer.format, consumer.k));
    for (int c = 0; c < consumer.k; ++c) to[c] = from_bf16(to_bf16(x[c]));
  }
};

inline void read_row(const Linear& consumer, const QuantRows& rows, int row, int32_t* q) {
  const uint8_t* from = rows.data + row * row_stride_bytes(consumer.format, consumer.k);
  if (consumer.format == Format::bf16) {
    __builtin_memcpy(q, from, sizeof(float) * static_cast<size_t>(consumer.k));
    return;
  }
  for (int c = 0; c < consumer.k; ++c) q[c] = reinterpret_cast<const int16_t*>(from)[c];
}

// ---- the cut ----

// Rows of a task: at most what fits L2, a multiple of the register tile, evenly spread.
template <class Ops>
int row_block(const Linear& w, int m) {
  int64_t most = kRowBlockBytes / Ops::row_stride(w, m) / Ops::kRows * Ops::kRows;
  if (most > kMaxRowBlock) most = kMaxRowBlock / Ops::kRows * Ops::kRows;
  if (most < 4 * Ops::kRows) most = 4 * Ops::kRows;
  if (m <= most) return m;
  return static_cast<int>(round_up(ceil_div(m, ceil_div(m, most)), Ops::kRows));
}

// Panels of a task. A gate and its up lie in one tile, so these stay together.
template <class Ops>
int task_panels(const GemmTask& task, int threads) {
  const int64_t tiles = task.w->n_pad / kTileColumns * ceil_div(task.x.m, row_block<Ops>(*task.w, task.x.m));
  return task.gate == Activation::none && tiles < 4 * threads ? 1 : 2;
}

template <class Ops>
int gemm_tasks(const GemmTask& task, int threads) {
  const int columns = task_panels<Ops>(task, threads) * kPanel;
  return static_cast<int>(task.w->n_pad / columns * ceil_div(task.x.m, row_block<Ops>(*task.w, task.x.m)));
}

inline size_t scratch_bytes(int max_k, int head_dim, int) {
  const size_t gemm = kPanelChunk * kPanel * 2 + kMaxRowBlock * kTileColumns * 4;
  const size_t row = 2 * sizeof(float) * static_cast<size_t>(round_up(max_k, 64));
  const size_t attention = 8 * kSegmentTokens * 4 + 2 * sizeof(float) * static_cast<size_t>(head_dim);
  return (gemm > row ? gemm : row) + attention + attention8_bytes<VectorProducts>(head_dim);
}

// ---- products ----

struct Tile {
  const Linear* w;
  const uint8_t* panels;  // one or two
  int panel_count;
  const uint8_t* next;    // the panels this thread will probably need after these
  const uint8_t* rows;    // first row of the block
  int64_t stride;         // bytes between rows
  int first, count;       // rows
  int column;             // first output
  int m;                  // rows of the whole batch
};

// Rows of each sweep, as even as the register tile allows: 8 rows are 4 + 4, not 6 + 2.
template <class Ops>
int strip_rows(int count) {
  return static_cast<int>(ceil_div(count, ceil_div(count, Ops::kRows)));
}

template <class Ops>
void stream_panels(const Tile& tile, int32_t* sums) {
  const int k = tile.w->k, strip = strip_rows<Ops>(tile.count);
  const int64_t bytes = panel_bytes(tile.w->format, k);
  for (int p = 0; p < tile.panel_count; ++p) {
    for (int r = 0; r < tile.count; r += strip) {
      const int rows = tile.count - r < strip ? tile.count - r : strip;
      const int16_t* x = reinterpret_cast<const int16_t*>(tile.rows + r * tile.stride);
      int32_t* out = sums + r * kTileColumns + p * kPanel;
      if (tile.w->format == Format::nib4) {
        Ops::stream_nib4(rows, x, k, tile.panels + p * bytes, out);
      } else {
        Ops::stream_int8(rows, x, k, tile.panels + p * bytes, out);
      }
    }
  }
}

// Bytes that come in while a product runs: `step` of them with every pair of inputs. All at once they would hold up the loads behind
// them: a core waits for two dozen lines at most.
struct Ahead {
  const uint8_t* from;
  int64_t step;
};

// Part `index` of `parts` of some bytes, while `pairs` pairs are multiplied.
inline Ahead ahead_part(const uint8_t* from, int64_t bytes, int index, int parts, int pairs) {
  return {from + bytes * index / parts, ceil_div(bytes, int64_t{parts} * pairs)};
}

// Touches part `index` of `parts` of some bytes: weights of the next panel come in while this one is used.
inline void prefetch_part(const uint8_t* from, int64_t bytes, int index, int parts) {
  const int64_t first = bytes * index / parts, last = bytes * (index + 1) / parts;
  for (int64_t i = first; i < last; i += kCacheLine) __builtin_prefetch(from + i, 0, 2);
}

template <class Ops>
void sweep_panel(const Tile& tile, int p, int16_t* wide, int32_t* sums) {
  const int k = tile.w->k, strip = strip_rows<Ops>(tile.count), strips = static_cast<int>(ceil_div(tile.count, strip));
  const int64_t bytes = panel_bytes(tile.w->format, k);
  const uint8_t* panel = tile.panels + p * bytes;
  const uint8_t* next = p + 1 < tile.panel_count ? panel + bytes : tile.next;
  for (int k0 = 0; k0 < k; k0 += kPanelChunk) {
    const int k1 = k0 + kPanelChunk < k ? k0 + kPanelChunk : k;
    if (tile.w->format == Format::nib4) {
      Ops::expand_nib4(panel, k0, k1, wide);
    } else {
      Ops::expand_int8(panel, k0, k1, wide);
    }
    for (int r = 0; r < tile.count; r += strip) {
      const int rows = tile.count - r < strip ? tile.count - r : strip;
      const int16_t* x = reinterpret_cast<const int16_t*>(tile.rows + r * tile.stride) + k0;
      const Ahead ahead = ahead_part(next + bytes * k0 / k, bytes * (k1 - k0) / k, r / strip, strips, (k1 - k0) / 2);
      Ops::dot_int16(rows, x, tile.stride / 2, wide, (k1 - k0) / 2, sums + r * kTileColumns, k0 == 0, ahead);
    }
  }
}

// work: one chunk of a panel as int16.
template <class Ops>
void widened_products(const Tile& tile, uint8_t* work, int32_t* sums) {
  if (tile.count <= (tile.w->format == Format::nib4 ? Ops::kStreamNibbles : Ops::kStreamBytes)) {
    stream_panels<Ops>(tile, sums);
    return;
  }
  for (int p = 0; p < tile.panel_count; ++p) sweep_panel<Ops>(tile, p, reinterpret_cast<int16_t*>(work), sums + p * kPanel);
}

template <class Ops>
void sweep_bf16(const Tile& tile, float* sums) {
  const int k = tile.w->k, strip = strip_rows<Ops>(tile.count);
  for (int p = 0; p < tile.panel_count; ++p) {
    const uint8_t* panel = tile.panels + p * panel_bytes(Format::bf16, k);
    for (int k0 = 0; k0 < k; k0 += kPanelChunk) {
      const int pairs = (k0 + kPanelChunk < k ? kPanelChunk : k - k0) / 2;
      for (int r = 0; r < tile.count; r += strip) {
        const int rows = tile.count - r < strip ? tile.count - r : strip;
        const float* x[8];
        for (int i = 0; i < rows; ++i) x[i] = reinterpret_cast<const float*>(tile.rows + (r + i) * tile.stride) + k0;
        Ops::dot_bf16(rows, x, panel + int64_t{k0} * kPanel * 2, pairs, sums + r * kTileColumns + p * kPanel, kTileColumns,
                      k0 == 0);
      }
    }
  }
}

// ---- epilogue: sums become floats in place, then leave through the view ----

inline void scale_sums(int32_t* sums, int rows, int columns, const float* scale, const float* step) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; c += kLanes) {
      i32x8 v;
      __builtin_memcpy(&v, sums + r * kTileColumns + c, sizeof v);
      const f32x8 y = (__builtin_convertvector(v, f32x8) * load8(scale + c)) * step[r];
      __builtin_memcpy(sums + r * kTileColumns + c, &y, sizeof y);
    }
  }
}

inline void write_tile(const GemmTask& task, const float* y, int column, int columns, int first, int count) {
  const bool gated = task.gate != Activation::none;
  const int width = gated ? columns / 2 : columns;
  float* out = task.out.data + column / kTileColumns * task.out.block_stride + first * task.out.row_stride + column % kTileColumns;
  for (int r = 0; r < count; ++r, y += kTileColumns, out += task.out.row_stride) {
    for (int c = 0; c < width; c += kLanes) {
      const f32x8 v = load8(y + c);
      store8(out + c, gated ? gated8(task.gate, v, load8(y + c + kPanel)) : v);
    }
  }
}

template <class Ops>
void gemm(const GemmTask& task, int index, int threads, const Scratch& scratch) {
  const Linear& w = *task.w;
  const int panels = task_panels<Ops>(task, threads), columns = panels * kPanel;
  const int tiles = w.n_pad / columns, block = row_block<Ops>(w, task.x.m);
  const int64_t bytes = panels * panel_bytes(w.format, w.k);
  Tile tile;
  tile.w = &w;
  tile.panel_count = panels;
  tile.first = index / tiles * block;
  tile.count = task.x.m - tile.first < block ? task.x.m - tile.first : block;
  tile.stride = Ops::row_stride(w, task.x.m);
  tile.rows = task.x.data + tile.first * tile.stride;
  tile.panels = w.packed + index % tiles * bytes;
  tile.next = tile.panels + bytes;
  tile.column = index % tiles * columns;
  tile.m = task.x.m;
  int32_t* sums = reinterpret_cast<int32_t*>(scratch.data);
  if (w.format == Format::bf16) {
    sweep_bf16<Ops>(tile, reinterpret_cast<float*>(sums));
  } else {
    Ops::products(tile, scratch.data + kMaxRowBlock * kTileColumns * sizeof(int32_t), sums);
    scale_sums(sums, tile.count, columns, w.scale + tile.column, task.x.step + tile.first);
  }
  write_tile(task, reinterpret_cast<const float*>(sums), tile.column, columns, tile.first, tile.count);
}

template <class Ops>
constexpr Kernels make_kernels(const char* name, bool prefers_nibbles) {
  Kernels table{};
  table.name = name;
  table.attention_rows = 48;
  table.preferred = prefers_nibbles ? +[](bool affine4) { return affine4 ? Format::nib4 : Format::int8; }
                                    : +[](bool) { return Format::int8; };
  table.packed_bytes = packed_bytes;
  table.tile_bytes = tile_bytes;
  table.pack_int8 = pack_int8;
  table.pack_nib4 = pack_nib4;
  table.pack_bf16 = pack_bf16;
  table.rows_bytes = rows_bytes;
  table.scratch_bytes = scratch_bytes;
  table.embed_row = embed_row;
  table.norm_row = norm_row<Int16Rows>;
  table.quantize_row = quantize_row<Int16Rows>;
  table.layer_norm_row = layer_norm_row<Int16Rows>;
  table.gelu_row = gelu_row<Int16Rows>;
  table.rope_row = rope_row;
  table.read_row = read_row;
  table.gemm_tasks = gemm_tasks<Ops>;
  table.gemm = gemm<Ops>;
  table.attention_segment = attention_segment<Ops>;
  table.attention_merge = attention_merge;
  table.attention_finish = attention_finish;
  table.softcap = softcap;
  add_low_rank(table);
  return table;
}
