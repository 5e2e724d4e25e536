#include "testing_bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <optional>
#include <vector>

#include "arrays.h"
#include "checks.h"
#include "cpu.h"
#include "lora.h"
#include "probe.h"
#include "step.h"

namespace tailrace {

namespace {

Format parse(const std::string& fmt) {
  return fmt == "bf16" ? Format::bf16 : fmt == "nib4" ? Format::nib4 : Format::int8;
}

// A consumer without weights: enough for kernels that only quantize.
OwnedLinear consumer_of(const std::string& fmt, int n, int k, const uint8_t* packed, const std::optional<AnyArray>& scale,
                        const AnyArray& wide) {
  const int count = axis_size(wide, "wide", 0);
  const int32_t* channels = array_data<int32_t>(wide, "wide", {kAnySize});
  check_wide(channels, count, k);
  OwnedLinear w;
  const float* scales = scale ? array_data<float>(*scale, "scale", {n}) : nullptr;
  const Linear whole{parse(fmt), n, static_cast<int>(round_up(n, kTileColumns)), k, packed, scales, channels, nullptr, count};
  w.assign(whole, {{0, n}}, packed);
  return w;
}

// Quantized rows and their memory.
struct Rows {
  Memory bytes, steps;
  QuantRows view;
  Rows(const Kernels& kernels, const Linear& w, int m) {
    bytes.reserve(kernels.rows_bytes(w.format, m, w.k, w.wide_count));
    steps.reserve(round_up(m, 32) * sizeof(float));
    view = {bytes.data(), steps.as<float>(), m};
  }
};

struct Work {
  Memory memory;
  Scratch scratch;
  Work(const Kernels& kernels, int k, int head_dim, int group) {
    memory.reserve(kernels.scratch_bytes(k, head_dim, group));
    scratch = {memory.data(), memory.bytes()};
  }
};

FloatView row_major(const float* data, int64_t stride) {
  return {const_cast<float*>(data), kTileColumns, kTileColumns, stride};
}

// Integers (bf16: bit patterns) and steps of quantized rows.
nb::tuple read_rows(const Kernels& kernels, const Linear& w, const QuantRows& rows) {
  NewArray<int32_t> q({static_cast<size_t>(rows.m), static_cast<size_t>(w.k)});
  NewArray<float> step({static_cast<size_t>(rows.m)});
  for (int r = 0; r < rows.m; ++r) kernels.read_row(w, rows, r, q.data + int64_t{r} * w.k);
  std::memcpy(step.data, rows.step, sizeof(float) * rows.m);
  return nb::make_tuple(q.object, step.object);
}

nb::tuple quantize(const std::string& variant, const std::string& fmt, const AnyArray& x, const AnyArray& wide) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(x, "x", 0), k = axis_size(x, "x", 1);
  const OwnedLinear w = consumer_of(fmt, 32, k, nullptr, std::nullopt, wide);
  Rows rows(kernels, w.view, m);
  Work work(kernels, k, 32, 1);
  const QuantTask task{row_major(array_data<float>(x, "x", {m, k}), k), &w.view, rows.view};
  for (int r = 0; r < m; ++r) kernels.quantize_row(task, r, work.scratch);
  return read_rows(kernels, w.view, rows.view);
}

nb::tuple norm(const std::string& variant, const std::string& fmt, const AnyArray& residual, const std::optional<AnyArray>& delta,
               const AnyArray& weight, float eps, const AnyArray& wide, const std::optional<AnyArray>& delta_weight) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(residual, "residual", 0), k = axis_size(residual, "residual", 1);
  const OwnedLinear w = consumer_of(fmt, 32, k, nullptr, std::nullopt, wide);
  Rows rows(kernels, w.view, m);
  Work work(kernels, k, 32, 1);
  const std::initializer_list<size_t> shape = {static_cast<size_t>(m), static_cast<size_t>(k)};
  NewArray<float> sum(shape), normed(shape);
  std::memcpy(sum.data, array_data<float>(residual, "residual", {m, k}), sizeof(float) * m * k);
  NormTask task;
  task.residual = sum.data, task.hidden = k, task.weight = array_data<float>(weight, "weight", {k}), task.eps = eps;
  if (delta) task.delta = row_major(array_data<float>(*delta, "delta", {m, k}), k);
  if (delta_weight) task.delta_weight = array_data<float>(*delta_weight, "delta_weight", {k});
  task.consumer = &w.view, task.out = rows.view, task.normed = normed.data;
  for (int r = 0; r < m; ++r) kernels.norm_row(task, r, work.scratch);
  return nb::make_tuple(sum.object, normed.object, read_rows(kernels, w.view, rows.view));
}

nb::object layer_norm(const std::string& variant, const AnyArray& x, const AnyArray& delta, const AnyArray& delta_bias,
                      const AnyArray& weight, const AnyArray& bias, float eps) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(x, "x", 0), k = axis_size(x, "x", 1);
  NewArray<float> out({static_cast<size_t>(m), static_cast<size_t>(k)});
  std::memcpy(out.data, array_data<float>(x, "x", {m, k}), sizeof(float) * m * k);
  LayerNormTask task;
  task.residual = out.data, task.hidden = k, task.eps = eps;
  task.delta = row_major(array_data<float>(delta, "delta", {m, k}), k);
  task.delta_bias = array_data<float>(delta_bias, "delta_bias", {k});
  task.weight = array_data<float>(weight, "weight", {k});
  task.bias = array_data<float>(bias, "bias", {k});
  for (int r = 0; r < m; ++r) kernels.layer_norm_row(task, r);
  return out.object;
}

// Rounded to bf16, as bits.
nb::object gelu(const std::string& variant, const AnyArray& x, const AnyArray& bias, const AnyArray& wide) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(x, "x", 0), k = axis_size(x, "x", 1);
  const OwnedLinear w = consumer_of("bf16", 32, k, nullptr, std::nullopt, wide);
  Rows rows(kernels, w.view, m);
  Work work(kernels, k, 32, 1);
  const GeluTask task{row_major(array_data<float>(x, "x", {m, k}), k), array_data<float>(bias, "bias", {k}), &w.view, rows.view};
  for (int r = 0; r < m; ++r) kernels.gelu_row(task, r, work.scratch);
  return nb::object(read_rows(kernels, w.view, rows.view)[0]);
}

// A clock that other processes do not disturb when one thread does all the work: its own CPU time; else wall time.
double clock_of(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Activation gate_of(const std::string& name) {
  return name == "silu" ? Activation::silu : name == "gelu" ? Activation::gelu : Activation::none;
}

// Quantizes x, multiplies `repeats` times, returns y [M, N] (with a gate, "silu" or "gelu": [M, N/2]) and the best time of one
// product in seconds.
nb::tuple gemm(const std::string& variant, const std::string& fmt, const AnyArray& packed, int n, const std::optional<AnyArray>& scale,
               const AnyArray& wide, const AnyArray& x, const std::string& gate, Team& team, int repeats) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(x, "x", 0), k = axis_size(x, "x", 1), count = axis_size(wide, "wide", 0);
  const size_t bytes = kernels.packed_bytes(parse(fmt), n, k, count);
  const uint8_t* weights = array_data<uint8_t>(packed, "packed", {static_cast<int64_t>(bytes)});
  const OwnedLinear w = consumer_of(fmt, n, k, weights, scale, wide);
  Rows rows(kernels, w.view, m);
  Work work(kernels, k, 32, 1);
  std::vector<Work> works;
  for (int i = 0; i < team.threads(); ++i) works.emplace_back(kernels, k, 32, 1);
  const QuantTask quant{row_major(array_data<float>(x, "x", {m, k}), k), &w.view, rows.view};
  for (int r = 0; r < m; ++r) kernels.quantize_row(quant, r, work.scratch);
  const Activation activation = gate_of(gate);
  const bool gated = activation != Activation::none;
  const int width = gated ? kTileColumns / 2 : kTileColumns, columns = gated ? n / 2 : n;
  Memory out(sizeof(float) * m * w.view.n_pad);
  const GemmTask task{&w.view, rows.view, {out.as<float>(), width, int64_t{m} * width, width}, activation};
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = clock_of(team.threads());
    team.run([&](Team::Member& member) {
      if (kernels.enter) kernels.enter();
      member.each(kernels.gemm_tasks(task, team.threads()),
                  [&](int t) { kernels.gemm(task, t, team.threads(), works[member.index()].scratch); });
      if (kernels.leave) kernels.leave();
    });
    best = std::min(best, clock_of(team.threads()) - start);
  }
  NewArray<float> y({static_cast<size_t>(m), static_cast<size_t>(columns)});
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < columns; ++c) y.data[int64_t{r} * columns + c] = out.as<float>()[(int64_t{c / width} * m + r) * width + c % width];
  }
  return nb::make_tuple(y.object, best);
}

nb::object embed(const std::string& variant, const AnyArray& rows, const std::string& fmt, int hidden, const AnyArray& tokens,
                 float scale) {
  const Kernels& kernels = find_variant(variant);
  EmbedTask task;
  task.hidden = hidden, task.scale = scale;
  task.rows = static_cast<const uint8_t*>(rows.data());
  task.row_bytes = fmt == "f32" ? 4 * hidden : fmt == "q8_0" ? hidden / 32 * 34 : 2 * hidden;
  task.format = fmt == "f32"    ? EmbeddingFormat::f32
                : fmt == "f16"  ? EmbeddingFormat::f16
                : fmt == "bf16" ? EmbeddingFormat::bf16
                                : EmbeddingFormat::q8_0;
  const int m = axis_size(tokens, "tokens", 0);
  const int32_t* ids = array_data<int32_t>(tokens, "tokens", {m});
  NewArray<float> out({static_cast<size_t>(m), static_cast<size_t>(hidden)});
  for (int r = 0; r < m; ++r) kernels.embed_row(task, ids[r], out.data + int64_t{r} * hidden);
  return out.object;
}

nb::object softcap(const std::string& variant, const AnyArray& x, float cap) {
  const int count = axis_size(x, "x", 0);
  check(count % 8 == 0, "x must have a multiple of 8 values");
  NewArray<float> out({static_cast<size_t>(count)});
  std::memcpy(out.data, array_data<float>(x, "x", {count}), sizeof(float) * count);
  find_variant(variant).softcap(out.data, count, cap);
  return out.object;
}

// A cache of one layer whose sequence uses `table`.
struct Cache {
  Memory memory;
  KvView view;
  Cache(int kv_heads, int head_dim, KvFormat format, const int32_t* table, int blocks) {
    view.layout = {1, kv_heads, head_dim, format};
    const int most = blocks ? *std::max_element(table, table + blocks) + 1 : 1;
    memory.reserve(most * view.layout.block_bytes());
    view.base = memory.data();
  }
};

// Element (token, d) of the K and V parts of a block.
int8_t* key_cell8(const KvView& kv, int block, int head, int slot, int d) {
  return reinterpret_cast<int8_t*>(kv.keys(block, head)) + (slot / 16 * kv.layout.head_dim / 4 + d / 4) * 64 + slot % 16 * 4 + d % 4;
}
int8_t* value_cell8(const KvView& kv, int block, int head, int slot, int d) {
  return reinterpret_cast<int8_t*>(kv.values(block, head)) + (d / 16 * kBlockTokens / 4 + slot / 4) * 64 + d % 16 * 4 + slot % 4;
}
bf16* key_cell(const KvView& kv, int block, int head, int slot, int d) {
  return reinterpret_cast<bf16*>(kv.keys(block, head)) + (slot / 16 * kv.layout.head_dim / 2 + d / 2) * 32 + slot % 16 * 2 + d % 2;
}
bf16* value_cell(const KvView& kv, int block, int head, int slot, int d) {
  return reinterpret_cast<bf16*>(kv.values(block, head)) + (d / 16 * kBlockTokens / 2 + slot / 2) * 32 + d % 16 * 2 + slot % 2;
}

// Calls fn(cell in the cache, index in [tokens][kv_heads][head_dim]) for every element.
template <class Cell, class F>
void each_cell(const KvView& kv, const int32_t* table, int tokens, Cell cell, F&& fn) {
  const int heads = kv.layout.kv_heads, head_dim = kv.layout.head_dim;
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < head_dim; ++d) {
        fn(cell(kv, table[t / kBlockTokens], h, t % kBlockTokens, d), (int64_t{t} * heads + h) * head_dim + d);
      }
    }
  }
}

// Calls fn(step of the keys, step of the values, index in [tokens][kv_heads]) for every token and head of an int8 cache.
template <class F>
void each_step(const KvView& kv, const int32_t* table, int tokens, F&& fn) {
  for (int t = 0; t < tokens; ++t) {
    const int block = table[t / kBlockTokens], slot = t % kBlockTokens;
    for (int h = 0; h < kv.layout.kv_heads; ++h) {
      fn(kv.key_steps(block, h)[slot], kv.value_steps(block, h)[slot], int64_t{t} * kv.layout.kv_heads + h);
    }
  }
}

// What `tokens` tokens have in the cache: keys, values [tokens, kv_heads, head_dim]; bf16 bits, or int8 with their steps
// [tokens, kv_heads].
template <class T, class KeyCell, class ValueCell>
std::pair<nb::object, nb::object> read_cells(const KvView& kv, const int32_t* table, int tokens, KeyCell key, ValueCell value) {
  const std::initializer_list<size_t> shape = {static_cast<size_t>(tokens), static_cast<size_t>(kv.layout.kv_heads),
                                               static_cast<size_t>(kv.layout.head_dim)};
  NewArray<T> keys(shape), values(shape);
  each_cell(kv, table, tokens, key, [&](T* c, int64_t i) { keys.data[i] = *c; });
  each_cell(kv, table, tokens, value, [&](T* c, int64_t i) { values.data[i] = *c; });
  return {keys.object, values.object};
}

nb::tuple read_cache(const nb::object& q, const KvView& kv, const int32_t* table, int tokens) {
  if (!kv.layout.int8()) {
    const auto [keys, values] = read_cells<bf16>(kv, table, tokens, key_cell, value_cell);
    return nb::make_tuple(q, keys, values);
  }
  const auto [keys, values] = read_cells<int8_t>(kv, table, tokens, key_cell8, value_cell8);
  const std::initializer_list<size_t> shape = {static_cast<size_t>(tokens), static_cast<size_t>(kv.layout.kv_heads)};
  NewArray<float> key_steps(shape), value_steps(shape);
  each_step(kv, table, tokens, [&](float& k, float& v, int64_t i) { key_steps.data[i] = k, value_steps.data[i] = v; });
  return nb::make_tuple(q, keys, values, key_steps.object, value_steps.object);
}

// The other way: bf16 bits, or int8 with steps [2, tokens, kv_heads] of keys and values.
void fill_cache(const KvView& kv, const int32_t* table, int tokens, const AnyArray& keys, const AnyArray& values,
                const std::optional<AnyArray>& steps) {
  const int heads = kv.layout.kv_heads, head_dim = kv.layout.head_dim;
  if (!steps) {
    const bf16* k = array_data<bf16>(keys, "keys", {tokens, heads, head_dim});
    const bf16* v = array_data<bf16>(values, "values", {tokens, heads, head_dim});
    each_cell(kv, table, tokens, key_cell, [&](bf16* c, int64_t i) { *c = k[i]; });
    each_cell(kv, table, tokens, value_cell, [&](bf16* c, int64_t i) { *c = v[i]; });
    return;
  }
  const int8_t* k = array_data<int8_t>(keys, "keys", {tokens, heads, head_dim});
  const int8_t* v = array_data<int8_t>(values, "values", {tokens, heads, head_dim});
  const float* s = array_data<float>(*steps, "steps", {2, tokens, heads});
  each_cell(kv, table, tokens, key_cell8, [&](int8_t* c, int64_t i) { *c = k[i]; });
  each_cell(kv, table, tokens, value_cell8, [&](int8_t* c, int64_t i) { *c = v[i]; });
  each_step(kv, table, tokens, [&](float& a, float& b, int64_t i) { a = s[i], b = s[int64_t{tokens} * heads + i]; });
}

// qkv rows at the given positions -> q [M, heads * head_dim], then what the cache holds as in read_cache.
nb::tuple rope_append(const std::string& variant, const AnyArray& qkv, const AnyArray& positions, const AnyArray& cos,
                      const AnyArray& sin, int heads, int kv_heads, int head_dim, float q_scale, const std::optional<AnyArray>& bias,
                      const std::optional<AnyArray>& q_norm, const std::optional<AnyArray>& k_norm, float eps, const std::string& kv) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(positions, "positions", 0), width = (heads + 2 * kv_heads) * head_dim;
  const int32_t* at = array_data<int32_t>(positions, "positions", {m});
  const int tokens = *std::max_element(at, at + m) + 1;
  std::vector<int32_t> table(ceil_div(tokens, kBlockTokens));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const KvFormat format = kv == "int8" ? KvFormat::int8 : KvFormat::bf16;
  Cache cache(kv_heads, head_dim, format, table.data(), static_cast<int>(table.size()));
  std::vector<RowPlace> places;
  for (int r = 0; r < m; ++r) places.push_back({at[r], at[r] / kBlockTokens});
  Work work(kernels, width, head_dim, heads / kv_heads);
  NewArray<float> q({static_cast<size_t>(m), static_cast<size_t>(heads) * head_dim});
  RopeTask task;
  task.qkv = row_major(array_data<float>(qkv, "qkv", {m, width}), width);
  task.heads = heads, task.rope_dim = 2 * axis_size(cos, "cos", 1);
  task.cos = array_data<float>(cos, "cos", {kAnySize, kAnySize});
  task.sin = array_data<float>(sin, "sin", {kAnySize, kAnySize});
  task.places = places.data(), task.kv = cache.view, task.q = q.data, task.q_scale = q_scale;
  if (bias) task.bias = array_data<float>(*bias, "bias", {width});
  if (q_norm) task.q_norm = array_data<float>(*q_norm, "q_norm", {head_dim});
  if (k_norm) task.k_norm = array_data<float>(*k_norm, "k_norm", {head_dim});
  task.eps = eps;
  for (int r = 0; r < m; ++r) kernels.rope_row(task, r, work.scratch);
  return read_cache(q.object, cache.view, table.data(), tokens);
}

struct Partials {
  std::vector<float> max, sum, out;
  Partials(int rows, int head_dim) : max(rows), sum(rows), out(static_cast<size_t>(rows) * head_dim) {}
  Partial view() { return {max.data(), sum.data(), out.data()}; }
};

// q [M, heads, head_dim] (scaled) over keys and values [tokens, kv_heads, head_dim] as in fill_cache, tiles of `tile_positions`.
// Returns out [M, heads, head_dim] and the best time of `repeats` runs in seconds.
nb::tuple attention(const std::string& variant, const AnyArray& q, const AnyArray& keys, const AnyArray& values, const AnyArray& table,
                    int first_position, int tile_positions, int repeats, int window, float softcap,
                    const std::optional<AnyArray>& steps) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(q, "q", 0), heads = axis_size(q, "q", 1), head_dim = axis_size(q, "q", 2);
  const int tokens = axis_size(keys, "keys", 0), kv_heads = axis_size(keys, "keys", 1), group = heads / kv_heads;
  check(first_position + m <= tokens, "keys must cover every position");
  const int blocks = axis_size(table, "table", 0);
  const int32_t* ids = array_data<int32_t>(table, "table", {ceil_div(tokens, kBlockTokens)});
  Cache cache(kv_heads, head_dim, steps ? KvFormat::int8 : KvFormat::bf16, ids, blocks);
  fill_cache(cache.view, ids, tokens, keys, values, steps);
  const float* queries = array_data<float>(q, "q", {m, heads, head_dim});
  NewArray<float> out({static_cast<size_t>(m), static_cast<size_t>(heads), static_cast<size_t>(head_dim)});
  Work work(kernels, 64, head_dim, group);
  Partials total(tile_positions * group, head_dim), next(tile_positions * group, head_dim);
  auto run_tile = [&](int first, int head) {
    AttentionTask task;
    task.q_stride = int64_t{heads} * head_dim;
    task.q = queries + first * task.q_stride + int64_t{head} * group * head_dim;
    task.positions = std::min(tile_positions, m - first), task.group = group;
    task.first_position = first_position + first, task.kv_head = head, task.kv = cache.view, task.block_table = ids;
    task.window = window, task.softcap = softcap;
    const int rows = task.positions * group, segments = static_cast<int>(ceil_div(task.first_position + task.positions, kSegmentTokens));
    for (int s = 0; s < segments; ++s) {
      kernels.attention_segment(task, s, s ? next.view() : total.view(), work.scratch);
      if (s) kernels.attention_merge(total.view(), next.view(), rows, head_dim);
    }
    for (int r = 0; r < rows; ++r) {
      kernels.attention_finish(total.view(), r, head_dim, out.data + (int64_t{first + r / group} * heads + head * group + r % group) * head_dim);
    }
  };
  if (kernels.enter) kernels.enter();
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = clock_of(1);
    for (int head = 0; head < kv_heads; ++head) {
      for (int first = 0; first < m; first += tile_positions) run_tile(first, head);
    }
    best = std::min(best, clock_of(1) - start);
  }
  if (kernels.leave) kernels.leave();
  return nb::make_tuple(out.object, best);
}

// y + scale * b (a x), computed `strip` rows at a time.
nb::object low_rank(const std::string& variant, const Adapter& adapter, const AnyArray& x, const AnyArray& y, int strip) {
  const Kernels& kernels = find_variant(variant);
  const int m = axis_size(x, "x", 0), k = axis_size(x, "x", 1), n = axis_size(y, "y", 1);
  check(strip > 0, "strip must be positive");
  const float* rows = array_data<float>(x, "x", {m, k});
  NewArray<float> out({static_cast<size_t>(m), static_cast<size_t>(n)});
  std::memcpy(out.data, array_data<float>(y, "y", {m, n}), sizeof(float) * m * n);
  std::vector<float> inner(int64_t{m} * kInner);
  for (Place place : {Place::qkv, Place::o, Place::gate_up, Place::down}) {
    for (const LowRank& w : adapter.of(0, place)) {
      check(w.k == k && n % kTileColumns == 0 && w.n <= n, "x and y must be of the projection's sizes");
      for (int row = 0; row < m; row += strip) {
        const int count = std::min(strip, m - row);
        kernels.shrink(w, rows + int64_t{row} * k, k, count, inner.data());
        kernels.expand(w, inner.data(), row_major(out.data, n), row, count);
      }
    }
  }
  return out.object;
}

// Times `runs` phases of one empty task a member; returns seconds a phase.
double phase_seconds(Team& team, int runs) {
  const double start = clock_of(0);
  team.run([&](Team::Member& member) {
    for (int i = 0; i < runs; ++i) member.each(team.threads(), [](int) {});
  });
  return (clock_of(0) - start) / runs;
}

// Sums 0 .. tasks-1 once a phase with tasks claimed by all members.
int64_t team_sum(Team& team, int tasks, int phases) {
  std::atomic<int64_t> sum{0};
  std::atomic<bool> failed{false};
  team.run([&](Team::Member& member) {
    for (int i = 0; i < phases; ++i) {
      const int64_t before = int64_t{i} * tasks * (tasks - 1) / 2;
      member.each(tasks, [&](int t) {
        sum.fetch_add(t);
        if (sum.load() < before) failed = true;  // a task of the last phase was still to come
      });
    }
  });
  check(!failed, "a phase began before the one before it had ended");
  return sum.load();
}

// The same with count[rank] tasks for each rank: the sum of each rank's, by whom it was claimed.
std::vector<int64_t> rank_sums(Team& team, const std::vector<int>& counts, int phases) {
  check(counts.size() == team.ranks().size(), "counts must have one for each rank");
  std::vector<std::atomic<int64_t>> sums(counts.size());
  std::atomic<int> done{0};
  std::atomic<bool> failed{false};
  int total = 0;
  for (int count : counts) total += count;
  team.run([&](Team::Member& member) {
    for (int i = 0; i < phases; ++i) {
      member.work_of_rank([&](int rank) { return counts[rank]; },
                          [&](int t) {
                            if (done.fetch_add(1) < i * total) failed = true;  // a task of the last phase was still to come
                            sums[member.rank()].fetch_add(t);
                          });
      member.wait();
    }
  });
  check(!failed, "a phase began before the one before it had ended");
  return {sums.begin(), sums.end()};
}

// By rank: first query head, their number, first KV head, their number.
std::vector<std::vector<int>> head_shares(int heads, int kv_heads, const std::vector<int>& ranks) {
  std::vector<std::vector<int>> shares;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const HeadShare share = share_heads(heads, kv_heads, ranks, static_cast<int>(rank));
    shares.push_back({share.heads.first, share.heads.count, share.kv_heads.first, share.kv_heads.count});
  }
  return shares;
}

// By rank: first unit, their number.
std::vector<std::vector<int>> cuts(int units, const std::vector<int>& ranks) {
  std::vector<std::vector<int>> parts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Range part = cut(units, ranks, static_cast<int>(rank));
    parts.push_back({part.first, part.count});
  }
  return parts;
}

// Best operations per second of one core over `seconds`; 0 where the CPU lacks AVX2.
double peak(double seconds, void (*rounds)(int), int operations) {
  constexpr int kRounds = 20000;
  bool avx2 = false;
  for (const Kernels* table : runnable_variants()) avx2 = avx2 || table == avx2_kernels();
  if (!avx2) return 0;
  double best = 1e30;
  for (const double begin = clock_of(1); clock_of(1) - begin < seconds;) {
    const double start = clock_of(1);
    rounds(kRounds);
    best = std::min(best, clock_of(1) - start);
  }
  return double{kRounds} * kProbeChains * operations / best;
}

uint64_t read_through(const uint8_t* p, int64_t bytes) {
  typedef uint64_t u64x2 __attribute__((vector_size(16)));
  u64x2 a{}, b{}, c{}, d{};
  for (const auto* v = reinterpret_cast<const u64x2*>(p); bytes > 0; bytes -= 64, v += 4) a ^= v[0], b ^= v[1], c ^= v[2], d ^= v[3];
  const u64x2 all = (a ^ b) ^ (c ^ d);
  return all[0] ^ all[1];
}

// Bytes per second when the whole team reads `bytes` once, best of `repeats`.
double read_bandwidth(Team& team, int64_t bytes, int repeats) {
  constexpr int64_t kPiece = 64 << 10;
  const int pieces = static_cast<int>(bytes / kPiece);
  check(pieces > 0, "bytes must be at least 65536");
  Memory memory(pieces * kPiece);
  std::memset(memory.data(), 1, pieces * kPiece);
  double best = 1e30;
  std::atomic<uint64_t> keep{0};
  for (int i = 0; i < repeats; ++i) {
    const double start = clock_of(team.threads());
    team.run([&](Team::Member& member) { member.each(pieces, [&](int t) { keep ^= read_through(memory.data() + t * kPiece, kPiece); }); });
    best = std::min(best, clock_of(team.threads()) - start);
  }
  return double{kPiece} * pieces / best;
}

}  // namespace

void bind_testing(nb::module_& m) {
  m.def("quantize", &quantize, nb::arg("variant"), nb::arg("fmt"), nb::arg("x"), nb::arg("wide"));
  m.def("norm", &norm, nb::arg("variant"), nb::arg("fmt"), nb::arg("residual"), nb::arg("delta").none(), nb::arg("weight"),
        nb::arg("eps"), nb::arg("wide"), nb::arg("delta_weight").none() = nb::none());
  m.def("layer_norm", &layer_norm, nb::arg("variant"), nb::arg("x"), nb::arg("delta"), nb::arg("delta_bias"), nb::arg("weight"),
        nb::arg("bias"), nb::arg("eps"));
  m.def("gelu", &gelu, nb::arg("variant"), nb::arg("x"), nb::arg("bias"), nb::arg("wide"));
  m.def("gemm", &gemm, nb::arg("variant"), nb::arg("fmt"), nb::arg("packed"), nb::arg("n"), nb::arg("scale").none(), nb::arg("wide"),
        nb::arg("x"), nb::arg("gate"), nb::arg("team"), nb::arg("repeats") = 1);
  m.def("embed", &embed, nb::arg("variant"), nb::arg("rows"), nb::arg("fmt"), nb::arg("hidden"), nb::arg("tokens"),
        nb::arg("scale") = 1.0f);
  m.def("rope_append", &rope_append, nb::arg("variant"), nb::arg("qkv"), nb::arg("positions"), nb::arg("cos"), nb::arg("sin"),
        nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("q_scale"), nb::arg("bias").none() = nb::none(),
        nb::arg("q_norm").none() = nb::none(), nb::arg("k_norm").none() = nb::none(), nb::arg("eps") = 1e-6f, nb::arg("kv") = "bf16");
  m.def("attention", &attention, nb::arg("variant"), nb::arg("q"), nb::arg("keys"), nb::arg("values"), nb::arg("table"),
        nb::arg("first_position"), nb::arg("tile_positions"), nb::arg("repeats") = 1, nb::arg("window") = 0,
        nb::arg("softcap") = 0.0f, nb::arg("steps").none() = nb::none());
  m.def("softcap", &softcap, nb::arg("variant"), nb::arg("x"), nb::arg("cap"));
  m.def("low_rank", &low_rank, nb::arg("variant"), nb::arg("adapter"), nb::arg("x"), nb::arg("y"), nb::arg("strip"));
  m.def("phase_seconds", &phase_seconds, nb::arg("team"), nb::arg("runs"), nb::call_guard<nb::gil_scoped_release>());
  m.def("team_sum", &team_sum, nb::arg("team"), nb::arg("tasks"), nb::arg("phases"), nb::call_guard<nb::gil_scoped_release>());
  m.def("rank_sums", &rank_sums, nb::arg("team"), nb::arg("counts"), nb::arg("phases"), nb::call_guard<nb::gil_scoped_release>());
  m.def("head_shares", &head_shares, nb::arg("heads"), nb::arg("kv_heads"), nb::arg("ranks"));
  m.def("cuts", &cuts, nb::arg("units"), nb::arg("ranks"));
  m.def("madd_peak", [](double seconds) { return peak(seconds, madd_rounds, 32); }, nb::arg("seconds"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("fma_peak", [](double seconds) { return peak(seconds, fma_rounds, 16); }, nb::arg("seconds"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("read_bandwidth", &read_bandwidth, nb::arg("team"), nb::arg("bytes"), nb::arg("repeats"),
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tailrace
