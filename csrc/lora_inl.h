// Low-rank additions and what they need of a gated feed-forward, on floats. Included after rows_inl.h inside a variant's anonymous
// namespace. Every sum has one order whatever the number of rows, and no fused multiply-add: all variants get the same bits.
//
//   a  [rank/8][k][8]   what eight ranks take from each input; ranks are padded with zeros
//   b  [n/32][rank][32] what 32 outputs take from each rank

constexpr int kLowRankRows = 3;  // that share the loads of weights; more would leave the registers

struct FloatWeights {
  using Type = float;
  static f32x8 load(const float* p) { return load8(p); }
};

struct Bf16Weights {
  using Type = bf16;
  static f32x8 load(const bf16* p) {
    typedef uint16_t u16x8 __attribute__((vector_size(16)));
    u16x8 v;
    __builtin_memcpy(&v, p, sizeof v);
    return (f32x8)(__builtin_convertvector(v, u32x8) << 16);
  }
};

// Eight ranks of R rows: four partial sums over every fourth input.
template <class Weights, int R>
inline void shrink_panel(const typename Weights::Type* a, int k, const float* x, int64_t stride, float* inner) {
  f32x8 sums[R][4];
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = splat(0);
  for (int c = 0; c < k; c += 4, a += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) {
      const f32x8 w = Weights::load(a + i * kLanes);
      for (int r = 0; r < R; ++r) sums[r][i] += w * x[r * stride + c + i];
    }
  }
  for (int r = 0; r < R; ++r) store8(inner + r * kInner, (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
}

// y += scale * (b inner) of R rows, from the outputs' first column on.
template <class Weights, int R>
inline void expand_panel(const LowRank& w, const typename Weights::Type* b, const float* inner, const FloatView& y, int row, int column) {
  f32x8 sums[R][4];
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = splat(0);
  for (int i = 0; i < w.rank; ++i, b += kTileColumns) {
    for (int j = 0; j < 4; ++j) {
      const f32x8 v = Weights::load(b + j * kLanes);
      for (int r = 0; r < R; ++r) sums[r][j] += v * inner[r * kInner + i];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < 4; ++j) {
      float* out = const_cast<float*>(at(y, row + r, column + j / 2 * w.column_step)) + j % 2 * kLanes;
      store8(out, load8(out) + sums[r][j] * w.scale);
    }
  }
}

template <class Weights, int R>
void shrink_strip(const LowRank& w, const float* x, int64_t stride, float* inner) {
  const auto* a = static_cast<const typename Weights::Type*>(w.a);
  for (int first = 0; first < w.rank; first += kLanes, a += int64_t{w.k} * kLanes) {
    shrink_panel<Weights, R>(a, w.k, x, stride, inner + first);
  }
}

template <class Weights, int R>
void expand_strip(const LowRank& w, const float* inner, const FloatView& y, int row) {
  const auto* b = static_cast<const typename Weights::Type*>(w.b);
  for (int first = 0; first < w.n; first += kTileColumns, b += int64_t{w.rank} * kTileColumns) {
    expand_panel<Weights, R>(w, b, inner, y, row, w.column + first / 16 * w.column_step);
  }
}

template <class Weights>
void shrink_rows(const LowRank& w, const float* x, int64_t stride, int rows, float* inner) {
  for (; rows >= kLowRankRows; rows -= kLowRankRows, x += kLowRankRows * stride, inner += kLowRankRows * kInner) {
    shrink_strip<Weights, kLowRankRows>(w, x, stride, inner);
  }
  if (rows == 2) shrink_strip<Weights, 2>(w, x, stride, inner);
  if (rows == 1) shrink_strip<Weights, 1>(w, x, stride, inner);
}

template <class Weights>
void expand_rows(const LowRank& w, const float* inner, const FloatView& y, int row, int rows) {
  for (; rows >= kLowRankRows; rows -= kLowRankRows, row += kLowRankRows, inner += kLowRankRows * kInner) {
    expand_strip<Weights, kLowRankRows>(w, inner, y, row);
  }
  if (rows == 2) expand_strip<Weights, 2>(w, inner, y, row);
  if (rows == 1) expand_strip<Weights, 1>(w, inner, y, row);
}

inline void shrink(const LowRank& w, const float* x, int64_t stride, int rows, float* inner) {
  w.bf16 ? shrink_rows<Bf16Weights>(w, x, stride, rows, inner) : shrink_rows<FloatWeights>(w, x, stride, rows, inner);
}

inline void expand(const LowRank& w, const float* inner, const FloatView& y, int row, int rows) {
  w.bf16 ? expand_rows<Bf16Weights>(w, inner, y, row, rows) : expand_rows<FloatWeights>(w, inner, y, row, rows);
}

// act(gate) * up of a row whose columns come as 16 gate | 16 matching up.
inline void gate_row(Activation activation, const FloatView& gate_up, int row, int ffn, float* out) {
  for (int c = 0; c < ffn; c += 16) {
    const float *gate = at(gate_up, row, 2 * c), *up = at(gate_up, row, 2 * c + 16);
    for (int i = 0; i < 16; i += kLanes) store8(out + c + i, gated8(activation, load8(gate + i), load8(up + i)));
  }
}

constexpr void add_low_rank(Kernels& table) {
  table.shrink = shrink;
  table.expand = expand;
  table.gate_row = gate_row;
}
