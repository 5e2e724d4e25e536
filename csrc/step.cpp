#include "step.h"

#include <algorithm>
#include <chrono>

namespace tailrace {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr double kLog2E = 1.4426950408889634;

const float* or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

FloatView blocked(float* data, int64_t rows, int width) { return {data, width, rows * width, width}; }
FloatView row_major(float* data, int64_t stride) { return {data, kTileColumns, kTileColumns, stride}; }

}  // namespace

Model::Step::Step(const Kernels& kernels, const Spec& spec, const Parts& parts, Team& team, Counters& counters)
    : kernels_(kernels), spec_(spec), parts_(parts), team_(team), counters_(counters) {
  logits_ = {nullptr, 0, spec.vocab, round_up(spec.vocab, kTileColumns)};
  space_.own.resize(parts_.shares.size());
  for (size_t rank = 0; rank < parts_.shares.size(); ++rank) {
    shares_.push_back(parts_.shares[rank].heads);
    for (int i = 0; i < team.ranks()[rank]; ++i) space_.scratch.emplace_back(scratch_bytes(static_cast<int>(rank)));
  }
}

// Query rows of an attention tile: whole positions.
int Model::Step::tile_rows(int rank) const {
  const int group = parts_.shares[rank].heads.group();
  return std::max(kernels_.attention_rows / group, 1) * group;
}

// A member's scratch: two attention partials, then the kernels' own.
size_t Model::Step::scratch_bytes(int rank) const {
  const int max_k = std::max({spec_.hidden, spec_.ffn, spec_.heads * spec_.head_dim});
  const size_t partials = 2 * sizeof(float) * static_cast<size_t>(round_up(tile_rows(rank) * (spec_.head_dim + 2), 16));
  return partials + kernels_.scratch_bytes(max_k, spec_.head_dim, parts_.shares[rank].heads.group());
}

size_t Model::Step::rows_bytes(int m) const {
  size_t most = 0;
  auto see = [&](const OwnedLinear& w) {
    most = std::max(most, kernels_.rows_bytes(w.view.format, m, w.view.k, w.view.wide_count));
  };
  const Share& any = parts_.shares.front();  // ranks differ in outputs, not in inputs
  for (const LayerShare& layer : any.layers) see(layer.qkv), see(layer.o), see(layer.gate_up), see(layer.down);
  if (any.head.set()) see(any.head);
  return most;
}

void Model::Step::reserve(const Batch& batch, int with_logits) {
  const size_t f = sizeof(float), m = batch.rows, r = batch.logits, with = with_logits, hidden = spec_.hidden;
  const size_t heads = static_cast<size_t>(spec_.heads) * spec_.head_dim;
  for (size_t rank = 0; rank < space_.own.size(); ++rank) reserve_own(static_cast<int>(rank), m);
  space_.residual.reserve(m * hidden * f);
  space_.kept.reserve(r * hidden * f);
  space_.rows.reserve(rows_bytes(batch.rows));
  space_.steps.reserve(round_up(m, 32) * f);
  space_.attention.reserve(m * heads * f);
  space_.delta.reserve(m * round_up(hidden, kTileColumns) * f);
  space_.activated.reserve(m * spec_.ffn * f);
  space_.logits.reserve(with * logits_.stride * f);
  space_.hidden.reserve(r * hidden * f);
  if (!adapters_.any()) return;
  space_.normed.reserve(m * hidden * f);
  space_.inner.reserve(m * kInner * f);
  space_.gate_up.reserve(m * 2 * spec_.ffn * f);
}

void Model::Step::reserve_own(int rank, size_t m) {
  const size_t f = sizeof(float), head = m * spec_.head_dim * f;
  const HeadShare& share = shares_[rank];
  int64_t partials = 0;
  for (const WindowPlan& cut : plan_.ranks[rank]) partials = std::max({partials, cut.all.partials, cut.logits.partials});
  RankSpace& own = space_.own[rank];
  own.qkv.reserve((share.heads.count + 2 * share.kv_heads.count) * head);
  own.q.reserve(share.heads.count * head);
  own.partial_max.reserve(partials * f);
  own.partial_sum.reserve(partials * f);
  own.partial_out.reserve(partials * spec_.head_dim * f);
}

// One member's walk through the step. Every member makes the same calls in the same order; one that comes late skips phases
// that are over, so nothing outside a phase's tasks may write shared memory. It works on what its rank has.
class Model::Step::Member {
 public:
  Member(Step& step, KvCache& kv, const Batch& batch, Team::Member& place)
      : step_(step),
        place_(place),
        rank_(place.rank()),
        kernels_(step.kernels_),
        spec_(step.spec_),
        parts_(step.parts_),
        share_(parts_.shares[rank_]),
        space_(step.space_),
        own_(space_.own[rank_]),
        batch_(batch),
        timed_(place.index() == 0 && step.counters_.timed),
        kv_(kv.view(rank_)) {
    split_scratch(space_.scratch[place.index()]);
  }

  void walk() {
    if (kernels_.enter) kernels_.enter();
    if (timed_) mark_ = now();
    spec_.encoder ? encode() : decode();
    if (kernels_.leave) kernels_.leave();
  }

 private:
  void decode() {
    const int last = spec_.layers - 1;
    for (int i = 0; i < last; ++i) layer(i);
    qkv(last);
    if (batch_.logits > 0) {
      keep_logit_rows();
      attention(last, &WindowPlan::logits, batch_.logits);
      feed_forward(last, batch_.logits);
      head();
    }
  }

  // By rank, what it has of a layer's matrix.
  auto linear(OwnedLinear LayerShare::*which, int i) const {
    return [this, which, i](int rank) -> const OwnedLinear& { return parts_.shares[rank].layers[i].*which; };
  }

  void encode() {
    embed();
    for (int i = 0; i < spec_.layers; ++i) {
      const Layer& layer = parts_.layers[i];
      const OwnedLinear* next = i + 1 < spec_.layers ? &share_.layers[i + 1].qkv : nullptr;
      project(i);
      attention(i, &WindowPlan::all, batch_.rows);
      norm_behind(layer.o_bias, layer.attn_out_norm, layer.attn_out_bias, &share_.layers[i].gate_up);
      widen_and_narrow(i);
      norm_behind(layer.down_bias, layer.ffn_out_norm, layer.ffn_out_bias, next);
    }
    float* hidden = space_.hidden.as<float>();
    each_row(Part::head, batch_.logits, [&](int i) {
      std::memcpy(hidden + int64_t{i} * spec_.hidden, residual_ + int64_t{batch_.logit_rows[i]} * spec_.hidden,
                  sizeof(float) * spec_.hidden);
    });
  }

  LayerNormTask layer_norm_task(const std::vector<float>& weight, const std::vector<float>& bias, const OwnedLinear* consumer) {
    LayerNormTask task;
    task.residual = residual_;
    task.hidden = spec_.hidden;
    task.weight = weight.data();
    task.bias = bias.data();
    task.eps = spec_.norm_eps;
    task.consumer = consumer ? &consumer->view : nullptr;
    task.out = quantized(batch_.rows);
    return task;
  }

  // Embedding plus position, normed.
  void embed() {
    const LayerNormTask norm = layer_norm_task(parts_.embed_norm, parts_.embed_bias, &share_.layers[0].qkv);
    each_row(Part::embed, batch_.rows, [&](int row) {
      float* x = residual_ + int64_t{row} * spec_.hidden;
      const float* position = parts_.positions.data() + int64_t{step_.plan_.places[row].position} * spec_.hidden;
      kernels_.embed_row(parts_.embedding, batch_.token_ids[row], x);
      for (int c = 0; c < spec_.hidden; ++c) x[c] += position[c];
      kernels_.layer_norm_row(norm, row);
    });
  }

  // Projections of rows that are quantized already, and K and V into the cache.
  void project(int i) {
    const FloatView out = blocked(own_.qkv.as<float>(), batch_.rows, kTileColumns);
    multiply(Part::qkv, linear(&LayerShare::qkv, i), out, batch_.rows);
    kv_.layer = spec_.encoder ? 0 : i;
    const RopeTask rope = rope_task(i, out);
    sweep(Part::rope, [&](int rank) { return Range{0, step_.shares_[rank].heads.count > 0 ? batch_.rows : 0}; },
          [&](int first, int end) {
            expand(i, Place::qkv, out, first, end);
            for (int row = first; row < end; ++row) kernels_.rope_row(rope, row, scratch_);
          });
  }

  // The sum with what a sublayer has left, normed.
  void norm_behind(const std::vector<float>& delta_bias, const std::vector<float>& weight, const std::vector<float>& bias,
                   const OwnedLinear* consumer) {
    LayerNormTask norm = layer_norm_task(weight, bias, consumer);
    norm.delta = delta(batch_.rows);
    norm.delta_bias = delta_bias.data();
    each_row(Part::norm, batch_.rows, [&](int row) { kernels_.layer_norm_row(norm, row); });
  }

  void widen_and_narrow(int i) {
    const LayerShare& own = share_.layers[i];
    const int rows = batch_.rows;
    const FloatView wide = blocked(space_.activated.as<float>(), rows, kTileColumns);
    multiply(Part::gate_up, linear(&LayerShare::gate_up, i), wide, rows);
    const GeluTask gelu{wide, parts_.layers[i].up_bias.data(), &own.down.view, quantized(rows)};
    each_row(Part::activation, rows, [&](int row) { kernels_.gelu_row(gelu, row, scratch_); });
    multiply(Part::down, linear(&LayerShare::down, i), delta(rows), rows);
  }

  void split_scratch(const Memory& memory) {
    const int rows = step_.tile_rows(rank_), head_dim = spec_.head_dim;
    const int64_t floats = round_up(int64_t{rows} * (head_dim + 2), 16);
    float* base = memory.as<float>();
    for (Partial* p : {&total_, &next_}) {
      *p = {base, base + rows, base + 2 * rows};
      base += floats;
    }
    scratch_ = {reinterpret_cast<uint8_t*>(base), memory.bytes() - 2 * floats * sizeof(float)};
  }

  int threads(int rank) const { return step_.team_.ranks()[rank]; }
  int ranks() const { return static_cast<int>(parts_.shares.size()); }

  // Runs a phase of tasks(rank) tasks for each rank and, in a timed step, books its time.
  template <class Tasks, class F>
  void phase(Part part, const Tasks& tasks, F&& fn) {
    place_.work_of_rank(tasks, fn);
    const double worked = timed_ ? now() : 0;
    place_.wait();
    if (timed_) book(part, worked);
  }

  void book(Part part, double worked) {
    const double t = now();
    step_.counters_.seconds[static_cast<int>(part)] += t - mark_;
    step_.counters_.wait += t - worked;
    mark_ = t;
  }

  // The rows of each rank, in tasks of a few, so that claiming costs little and the tail stays short: fn(first, end).
  template <class RowsOf, class F>
  void sweep(Part part, const RowsOf& rows_of, F&& fn) {
    const auto chunk = [&](int rank, int rows) { return std::clamp(rows / (8 * threads(rank)), 1, 16); };
    const auto tasks = [&](int rank) {
      const int rows = rows_of(rank).count;
      return static_cast<int>(ceil_div(rows, chunk(rank, rows)));
    };
    const Range own = rows_of(rank_);
    const int few = chunk(rank_, own.count);
    phase(part, tasks, [&](int task) { fn(own.first + task * few, std::min(own.end(), own.first + (task + 1) * few)); });
  }

  // Each row on one rank, on the same one from phase to phase: it stays in the caches there.
  template <class F>
  void each_rows(Part part, int rows, F&& fn) {
    sweep(part, [&](int rank) { return cut(rows, step_.team_.ranks(), rank); }, fn);
  }

  template <class F>
  void each_row(Part part, int rows, F&& fn) {
    each_rows(part, rows, [&](int first, int end) {
      for (int row = first; row < end; ++row) fn(row);
    });
  }

  // Rows first .. end - 1 in runs that share an adapter: fn(adapter, row, count).
  template <class F>
  void each_run(int first, int end, F&& fn) {
    const std::vector<const Adapter*>& of = logit_rows_only_ ? step_.adapters_.logits : step_.adapters_.rows;
    for (int row = first, next; row < end; row = next) {
      for (next = row + 1; next < end && of[next] == of[row];) ++next;
      if (of[row]) fn(*of[row], row, next - row);
    }
  }

  // The inner values of what adapters add to a linear, from its input x [rows][stride].
  void shrink(int layer, Place place, const float* x, int64_t stride, int first, int end) {
    if (!step_.adapters_.any()) return;
    each_run(first, end, [&](const Adapter& adapter, int row, int count) {
      float* inner = inner_of(row);
      for (const LowRank& w : adapter.of(layer, place)) {
        kernels_.shrink(w, x + row * stride, stride, count, inner);
        inner += kMaxRank;
      }
    });
  }

  // Adds them to what the linear gave; of q, k and v, to the rank's heads.
  void expand(int layer, Place place, const FloatView& y, int first, int end) {
    if (!step_.adapters_.any()) return;
    each_run(first, end, [&](const Adapter& adapter, int row, int count) {
      const float* inner = inner_of(row);
      for (const LowRank& w : adapter.of(layer, place)) {
        kernels_.expand(place == Place::qkv ? of_rank(w, spec_, share_.heads) : w, inner, y, row, count);
        inner += kMaxRank;
      }
    });
  }

  float* inner_of(int row) const { return space_.inner.as<float>() + int64_t{row} * kInner; }

  // Each rank its outputs, into its columns of `out`. `of(rank)` is what it has of the matrix.
  template <class Weights>
  void multiply(Part part, const Weights& of, FloatView out, int rows, Activation gate = Activation::none) {
    const auto task_of = [&](int rank) {
      GemmTask task{&of(rank).view, quantized(rows), out, gate};
      task.out.data += of(rank).first / kTileColumns * out.block_stride;
      return task;
    };
    const auto tasks = [&](int rank) { return of(rank).view.n > 0 ? kernels_.gemm_tasks(task_of(rank), threads(rank)) : 0; };
    const GemmTask task = task_of(rank_);
    phase(part, tasks, [&](int i) { kernels_.gemm(task, i, threads(rank_), scratch_); });
  }

  QuantRows quantized(int rows) const { return {space_.rows.data(), space_.steps.as<float>(), rows}; }

  // `behind` is the norm of the sublayer that left the delta; empty when it has none.
  NormTask norm_task(int rows, const std::vector<float>& weight, const OwnedLinear& consumer, FloatView delta,
                     const std::vector<float>& behind) {
    NormTask task;
    task.residual = residual_;
    task.hidden = spec_.hidden;
    task.delta = delta;
    task.delta_weight = or_null(behind);
    task.weight = weight.data();
    task.eps = spec_.norm_eps;
    task.consumer = &consumer.view;
    task.out = quantized(rows);
    if (step_.adapters_.any()) task.normed = space_.normed.as<float>();
    return task;
  }

  FloatView delta(int rows) const { return blocked(space_.delta.as<float>(), rows, kTileColumns); }

  void layer(int i) {
    qkv(i);
    attention(i, &WindowPlan::all, batch_.rows);
    feed_forward(i, batch_.rows);
  }

  // Norm, projections, and K and V of the new rows into the cache.
  void qkv(int i) {
    const Layer& layer = parts_.layers[i];
    const OwnedLinear& consumer = share_.layers[i].qkv;
    const int rows = batch_.rows;
    const NormTask norm = i == 0 ? norm_task(rows, layer.attn_norm, consumer, {}, {})
                                 : norm_task(rows, layer.attn_norm, consumer, delta(rows), parts_.layers[i - 1].ffn_out_norm);
    each_rows(i == 0 ? Part::embed : Part::norm, rows, [&](int first, int end) {
      if (i > 0) expand(i - 1, Place::down, norm.delta, first, end);
      for (int row = first; row < end; ++row) {
        if (i == 0) kernels_.embed_row(parts_.embedding, batch_.token_ids[row], residual_ + int64_t{row} * spec_.hidden);
        kernels_.norm_row(norm, row, scratch_);
      }
      shrink(i, Place::qkv, norm.normed, spec_.hidden, first, end);
    });
    project(i);
  }

  RopeTask rope_task(int i, FloatView qkv) const {
    const Layer& layer = parts_.layers[i];
    RopeTask task;
    task.qkv = qkv;
    task.heads = share_.heads.heads.count;
    if (!spec_.encoder) {
      const RopeTable& table = parts_.ropes[spec_.ropes[i]];
      task.rope_dim = table.dim;
      task.cos = table.cos.data();
      task.sin = table.sin.data();
    }
    task.places = step_.plan_.places.data();
    task.kv = kv_;
    task.q = own_.q.as<float>();
    task.q_scale = static_cast<float>(spec_.attention_scale > 0 ? kLog2E * spec_.attention_scale
                                                                : kLog2E / __builtin_sqrt(static_cast<double>(spec_.head_dim)));
    task.bias = or_null(share_.layers[i].qkv_bias);
    task.q_norm = or_null(layer.q_norm);
    task.k_norm = or_null(layer.k_norm);
    task.eps = spec_.norm_eps;
    return task;
  }

  void attention(int i, AttentionPlan WindowPlan::*of_rows, int rows) {
    window_ = spec_.windows[i];
    const auto plan_of = [&](int rank) -> const AttentionPlan& { return step_.plan_.of(rank, window_).*of_rows; };
    const AttentionPlan& plan = plan_of(rank_);
    phase(Part::attention, [&](int rank) { return static_cast<int>(plan_of(rank).tiles.size()); }, [&](int t) { tile(plan.tiles, t); });
    if (ranks() > 1) {  // partial results are many times what they are merged to, which is enough to send to other ranks
      sweep(Part::merge, [&](int rank) { return Range{0, plan_of(rank).partials > 0 ? rows : 0}; },
            [&](int first, int end) {
              for (int row = first; row < end; ++row) merge_row(plan.rows[row], row);
            });
    }
    const int width = spec_.heads * spec_.head_dim;
    const QuantTask quant{row_major(space_.attention.as<float>(), width), &share_.layers[i].o.view, quantized(rows)};
    each_rows(Part::merge, rows, [&](int first, int end) {
      for (int row = first; row < end; ++row) {
        if (ranks() == 1) merge_row(plan.rows[row], row);
        kernels_.quantize_row(quant, row, scratch_);
      }
      shrink(i, Place::o, space_.attention.as<float>(), width, first, end);
    });
    multiply(Part::o, linear(&LayerShare::o, i), delta(rows), rows);
  }

  AttentionTask attention_task(const AttentionTile& tile) const {
    const int head_dim = spec_.head_dim, group = share_.heads.group();
    AttentionTask task;
    task.q_stride = int64_t{share_.heads.heads.count} * head_dim;
    task.q = own_.q.as<float>() + tile.row * task.q_stride + int64_t{tile.kv_head} * group * head_dim;
    task.positions = tile.positions;
    task.group = group;
    task.first_position = tile.first_position;
    task.kv_head = tile.kv_head;
    task.kv = kv_;
    task.block_table = batch_.block_tables + int64_t{tile.sequence} * batch_.table_width;
    task.window = window_;
    task.keys = tile.keys;
    task.softcap = static_cast<float>(kLog2E * spec_.attention_softcap);
    return task;
  }

  Partial partial_at(int64_t index) const {
    return {own_.partial_max.as<float>() + index, own_.partial_sum.as<float>() + index,
            own_.partial_out.as<float>() + index * spec_.head_dim};
  }

  // `head` of the rank's.
  float* attention_out(int row, int head) const {
    return space_.attention.as<float>() + (int64_t{row} * spec_.heads + share_.heads.heads.first + head) * spec_.head_dim;
  }

  // The blocks of a segment that this member will probably read.
  AttentionTask::Next upcoming(const AttentionTile& tile, int segment) const {
    const int32_t* table = batch_.block_tables + int64_t{tile.sequence} * batch_.table_width;
    return {table + segment * (kSegmentTokens / kBlockTokens), tile.blocks_behind(segment, segment + 1), tile.kv_head};
  }

  void tile(const std::vector<AttentionTile>& tiles, int index) {
    const AttentionTile& tile = tiles[index];
    AttentionTask task = attention_task(tile);
    const auto segment = [&](int s, const Partial& out) {
      task.next = {};
      if (s + 1 < tile.last_segment) {
        task.next = upcoming(tile, s + 1);
      } else if (index + 1 < static_cast<int>(tiles.size())) {
        task.next = upcoming(tiles[index + 1], tiles[index + 1].first_segment);
      }
      kernels_.attention_segment(task, s, out, scratch_);
    };
    if (tile.partial >= 0) return segment(tile.first_segment, partial_at(tile.partial));
    const int rows = tile.positions * task.group;
    segment(tile.first_segment, total_);
    for (int s = tile.first_segment + 1; s < tile.last_segment; ++s) {
      segment(s, next_);
      kernels_.attention_merge(total_, next_, rows, spec_.head_dim);
    }
    for (int r = 0; r < rows; ++r) {
      float* out = attention_out(tile.out_row + r / task.group, tile.kv_head * task.group + r % task.group);
      kernels_.attention_finish(total_, r, spec_.head_dim, out);
    }
  }

  void merge_row(const SplitRow& split, int row) {
    const int group = share_.heads.group();
    for (int head = 0; split.segments > 0 && head < share_.heads.heads.count; ++head) {
      const int64_t first = split.first + int64_t{head / group} * split.segments * split.stride + head % group;
      const Partial total = partial_at(first);
      for (int s = 1; s < split.segments; ++s) kernels_.attention_merge(total, partial_at(first + s * split.stride), 1, spec_.head_dim);
      kernels_.attention_finish(total, 0, spec_.head_dim, attention_out(row, head));
    }
  }

  void feed_forward(int i, int rows) {
    const Layer& layer = parts_.layers[i];
    const NormTask norm = norm_task(rows, layer.ffn_norm, share_.layers[i].gate_up, delta(rows), layer.attn_out_norm);
    each_rows(Part::norm, rows, [&](int first, int end) {
      expand(i, Place::o, norm.delta, first, end);
      for (int row = first; row < end; ++row) kernels_.norm_row(norm, row, scratch_);
      shrink(i, Place::gate_up, norm.normed, spec_.hidden, first, end);
    });
    step_.adapters_.any() ? gate_apart(i, rows) : gate(i, rows);
    multiply(Part::down, linear(&LayerShare::down, i), delta(rows), rows);
  }

  void gate(int i, int rows) {
    const FloatView activated = blocked(space_.activated.as<float>(), rows, kTileColumns / 2);
    multiply(Part::gate_up, linear(&LayerShare::gate_up, i), activated, rows, spec_.activation);
    const QuantTask quant{activated, &share_.layers[i].down.view, quantized(rows)};
    each_row(Part::activation, rows, [&](int row) { kernels_.quantize_row(quant, row, scratch_); });
  }

  // The same with what adapters add before the activation.
  void gate_apart(int i, int rows) {
    const FloatView wide = blocked(space_.gate_up.as<float>(), rows, kTileColumns);
    multiply(Part::gate_up, linear(&LayerShare::gate_up, i), wide, rows);
    float* activated = space_.activated.as<float>();
    const QuantTask quant{row_major(activated, spec_.ffn), &share_.layers[i].down.view, quantized(rows)};
    each_rows(Part::activation, rows, [&](int first, int end) {
      expand(i, Place::gate_up, wide, first, end);
      for (int row = first; row < end; ++row) {
        kernels_.gate_row(spec_.activation, wide, row, spec_.ffn, activated + int64_t{row} * spec_.ffn);
        kernels_.quantize_row(quant, row, scratch_);
      }
      shrink(i, Place::down, activated, spec_.ffn, first, end);
    });
  }

  // From here on only rows that need logits go on.
  void keep_logit_rows() {
    float* kept = space_.kept.as<float>();
    each_row(Part::norm, batch_.logits, [&](int i) {
      std::memcpy(kept + int64_t{i} * spec_.hidden, residual_ + int64_t{batch_.logit_rows[i]} * spec_.hidden,
                  sizeof(float) * spec_.hidden);
    });
    residual_ = kept;
    logit_rows_only_ = true;
  }

  void head() {
    const int rows = batch_.logits, with = step_.logits_.rows;
    NormTask norm = norm_task(rows, parts_.final_norm, share_.head, delta(rows), parts_.layers.back().ffn_out_norm);
    norm.normed = space_.hidden.as<float>();
    const auto normed = [&](int first, int end) {
      expand(spec_.layers - 1, Place::down, norm.delta, first, end);
      for (int row = first; row < end; ++row) kernels_.norm_row(norm, row, scratch_);
    };
    // Those without logits first: what they are quantized to is overwritten.
    each_rows(Part::norm, rows - with, [&](int first, int end) { normed(with + first, with + end); });
    if (with == 0) return;
    norm.out = quantized(with);
    each_rows(Part::norm, with, normed);
    const int stride = static_cast<int>(step_.logits_.stride);
    float* logits = space_.logits.as<float>();
    const auto head_of = [&](int rank) -> const OwnedLinear& { return parts_.shares[rank].head; };
    multiply(Part::head, head_of, row_major(logits, stride), with);
    if (spec_.logit_softcap > 0) {
      each_row(Part::head, with, [&](int row) { kernels_.softcap(logits + int64_t{row} * stride, stride, spec_.logit_softcap); });
    }
  }

  Step& step_;
  Team::Member& place_;
  const int rank_;
  const Kernels& kernels_;
  const Spec& spec_;
  const Parts& parts_;
  const Share& share_;
  Workspace& space_;
  RankSpace& own_;
  const Batch& batch_;
  const bool timed_;
  KvView kv_;
  int window_ = 0;
  float* residual_ = space_.residual.as<float>();
  bool logit_rows_only_ = false;
  Partial total_, next_;
  Scratch scratch_;
  double mark_ = 0;
};

void Model::Step::Walk::operator()(Team::Member& place) { Member(step, *kv, step.batch_.view, place).walk(); }

void Model::Step::begin(KvCache& kv, const Batch& batch) {
  team_.settle();
  logits_.rows = hidden_rows_ = 0;  // should memory run out below, nobody may read what is left of the last step
  batch_.assign(batch);
  adapters_.assign(batch);
  plan_ = make_plan(spec_, shares_, team_.ranks(), batch, kernels_.attention_rows);
  const int with = spec_.encoder ? 0 : batch.logits - batch.hidden_only;
  reserve(batch, with);
  logits_.data = space_.logits.as<float>();
  logits_.rows = with;
  hidden_rows_ = batch.logits;
  ++counters_.steps;
  walk_.kv = &kv;
  team_.begin(walk_);
  if (counters_.timed) team_.settle();
}

void OwnedBatch::assign(const Batch& batch) {
  view = batch;
  view.adapters = nullptr;
  values.clear();
  const std::pair<const int32_t**, size_t> arrays[] = {
      {&view.token_ids, batch.rows},
      {&view.row_starts, batch.sequences + 1},
      {&view.first_positions, batch.sequences},
      {&view.block_tables, size_t(batch.sequences) * batch.table_width},
      {&view.logit_rows, batch.logits}};
  size_t total = 0;
  for (const auto& [array, count] : arrays) total += count;
  values.reserve(total);  // so that it does not move below
  for (const auto& [array, count] : arrays) {
    const int32_t* copy = values.data() + values.size();
    values.insert(values.end(), *array, *array + count);
    *array = copy;
  }
}

}  // namespace tailrace
