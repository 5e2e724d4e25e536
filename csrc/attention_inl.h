// One attention segment on 8-lane float machines. Included after vector_inl.h inside a variant's anonymous namespace.
//
// Rows go in strips of up to Ops::kRows. For a strip:
//   scores[r][t] = sum_d q[r][d] * K[t][d]      ascending d, one accumulator per score
//   p = 2^(s - max); keys the row does not see weigh exactly 0
//   sum: eight lanes over ascending t, then the fixed tree of sum_lanes
//   out[r][d] = sum_t p[r][t] * V[t][d]         ascending t, one accumulator per output
// Both products are Ops::dot_bf16: float rows times 16 bf16 columns stored as pairs. Leaving out keys that no row of the strip sees
// adds nothing to these sums, so a strip's neighbours do not matter.

#include "strip_inl.h"

#include "attention8_inl.h"

template <class Ops>
void strip_scores(const AttentionTask& task, int segment, const Strip& strip, float* scores) {
  const int head_dim = task.kv.layout.head_dim;
  for (int t = strip.start; t < strip.longest; t += 16) {
    const uint8_t* keys = task.kv.keys(block_of(task, segment, t), task.kv_head) + (t % kBlockTokens) / 16 * 32 * head_dim;
    Ops::dot_bf16(strip.rows, strip.q, keys, head_dim / 2, scores + t, kSegmentTokens, true);
  }
}

template <class Ops>
void strip_values(const AttentionTask& task, int segment, const Strip& strip, const float* weights, float* out) {
  const int head_dim = task.kv.layout.head_dim;
  const float* rows[8];
  for (int first = strip.start; first < strip.longest; first += kBlockTokens) {
    const int left = strip.longest - first;
    const int pairs = left >= kBlockTokens ? kBlockTokens / 2 : (left + 1) / 2;
    const uint8_t* values = task.kv.values(block_of(task, segment, first), task.kv_head);
    for (int r = 0; r < strip.rows; ++r) rows[r] = weights + r * kSegmentTokens + first;
    for (int d = 0; d < head_dim; d += 16) {
      Ops::dot_bf16(strip.rows, rows, values + d / 16 * kBlockTokens * 32, pairs, out + d, head_dim,
                    first == strip.start);
    }
  }
}

template <class Ops>
void attention_bf16(const AttentionTask& task, int segment, const Partial& out, const Scratch& scratch) {
  const int head_dim = task.kv.layout.head_dim, total = task.positions * task.group;
  float* scores = reinterpret_cast<float*>(scratch.data);
  for (int first = 0; first < total; first += Ops::kRows) {
    const Strip strip = make_strip(task, segment, first, total - first < Ops::kRows ? total - first : Ops::kRows);
    float* result = out.out + int64_t{first} * head_dim;
    if (strip.longest == 0) {
      for (int i = 0; i < strip.rows * head_dim; ++i) result[i] = 0;
    }
    strip_scores<Ops>(task, segment, strip, scores);
    for (int r = 0; r < strip.rows; ++r) {
      float* s = scores + r * kSegmentTokens;
      if (task.softcap > 0 && strip.visible[r] > 0) softcap(s + strip.start, static_cast<int>(round_up(strip.visible[r] - strip.start, 8)), task.softcap);
      row_softmax(strip, r, s, out.max + first + r, out.sum + first + r);
    }
    strip_values<Ops>(task, segment, strip, scores, result);
  }
}

template <class Ops>
void attention_segment(const AttentionTask& task, int segment, const Partial& out, const Scratch& scratch) {
  if (task.kv.layout.int8()) return attention_int8<typename Ops::Products>(task, segment, out, scratch);
  attention_bf16<Ops>(task, segment, out, scratch);
}
