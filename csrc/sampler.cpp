// How a row is sampled without sorting or touching more of the vocabulary than needed.
//
//   chunk          32 consecutive tokens. One scan finds every chunk's largest logit; all later work skips chunks by it.
//   weight         exp((logit - highest) / temperature), in [0, 1]: a probability up to the common factor 1 / total.
//   Cut            "these are the best": the last kept token in the order (logit descending, id ascending). top_k and
//                  top_p are the same search for a cut, by weight 1 or by probability: a histogram over the bits of the
//                  logits, refined inside the bin where the target is reached. On a whole row a few vector passes first
//                  narrow the logits between which the cut must lie. The mass of a set is exact to about 1e-6.
//   noise          52 bits r of a hash of (key, position, id) give u = 1 - (r + 0.5) / 2^52 and gumbel = -log(-log(u)).
//                  A token can pass the best score S so far only if  r / 2^52 < weight / exp(S), because 1 - u is at most
//                  -log(u): so almost all tokens cost one integer hash and a comparison, and only a few a logarithm.
//
// Results are the same bits on every machine: see sampler_math.h. The hot loops are cloned for AVX2, which has no fused
// multiply-add to contract into.
#include "sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "executor.h"
#include "sampler_math.h"

namespace tailrace {
namespace {

using namespace sampling;

#include "sampler_row_inl.h"

// ---- cuts ----

// Larger logits have larger keys; -0 and +0 are equal.
TAILRACE_INLINE uint32_t order_key(float logit) {
  const float x = logit + 0.f;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

struct Cut {
  uint32_t key;
  int32_t id;
  TAILRACE_INLINE bool keeps(int32_t token, float logit) const {
    const uint32_t k = order_key(logit);
    return k > key || (k == key && token <= id);
  }
};

// What top_p and min_p leave of a row.
struct Gate {
  Cut cut = {0, std::numeric_limits<int32_t>::max()};
  float min_weight = 0;
};

constexpr int kBinBits = 11, kBins = 1 << kBinBits;

struct Histogram {
  double weight[kBins];
  int shift;
  uint32_t lowest;

  Histogram(uint32_t low, uint32_t high) : weight{}, shift(0), lowest(low) {
    while ((high - low) >> shift >= static_cast<uint32_t>(kBins)) shift++;
  }
  int bin(const Candidate& c) const { return static_cast<int>((order_key(c.logit) - lowest) >> shift); }

  // The bin in which the best tokens reach the target; `target` becomes what is still missing above it.
  int reach(double& target) const {
    int last = 0;
    double missing = target;
    for (int b = kBins - 1; b >= 0; b--) {
      if (weight[b] <= 0) continue;
      target = missing;
      last = b;
      if (weight[b] >= missing) break;
      missing -= weight[b];
    }
    return last;
  }
};

Cut cut_ties(const std::vector<Candidate>& tied, int count, double target, bool by_weight) {
  double reached = 0;
  for (int i = 0; i < count; i++) {
    reached += by_weight ? static_cast<double>(tied[i].weight) : 1;
    if (reached >= target) return {order_key(tied[i].logit), tied[i].id};
  }
  return {order_key(tied[0].logit), tied[count - 1].id};
}

// The smallest set of best candidates (ids ascending in the array) whose weights, or number, reach `target`.
Cut find_cut(const std::vector<Candidate>& candidates, int count, double target, bool by_weight,
             std::vector<Candidate>& refined) {
  const auto* source = &candidates;
  for (;;) {
    uint32_t low = 0xffffffffu, high = 0;
    for (int i = 0; i < count; i++) {
      const uint32_t key = order_key((*source)[i].logit);
      low = std::min(low, key), high = std::max(high, key);
    }
    if (low == high) return cut_ties(*source, count, target, by_weight);
    Histogram histogram(low, high);
    for (int i = 0; i < count; i++)
      histogram.weight[histogram.bin((*source)[i])] += by_weight ? static_cast<double>((*source)[i].weight) : 1;
    const int wanted = histogram.reach(target);
    int kept = 0;
    for (int i = 0; i < count; i++)
      if (histogram.bin((*source)[i]) == wanted) refined[kept++] = (*source)[i];
    source = &refined;
    count = kept;
  }
}

int keep(std::vector<Candidate>& candidates, int count, const Cut& cut) {
  const auto begin = candidates.begin();
  const auto dropped = [&](const Candidate& c) { return !cut.keeps(c.id, c.logit); };
  return static_cast<int>(std::remove_if(begin, begin + count, dropped) - begin);
}

// ---- the best score so far ----

class Race {
 public:
  Race(uint64_t stream, float highest, float inverse) : stream_(stream), highest_(highest), inverse_(inverse) {}

  // Noise bits at or above this cannot win with a weight of at most `bound`.
  TAILRACE_INLINE int64_t limit(float bound) const {
    const double r = static_cast<double>(bound) * scale_;
    return r < 0x1p53 ? static_cast<int64_t>(r) + 1 : std::numeric_limits<int64_t>::max();
  }
  void enter(int32_t id, float logit) { enter(id, logit, noise_bits(stream_, static_cast<uint64_t>(id))); }
  void enter(int32_t id, float logit, int64_t noise) {
    const double score = static_cast<double>((logit - highest_) * inverse_) + gumbel(noise);
    if (winner_ >= 0 && (score < score_ || (score == score_ && id > winner_))) return;
    winner_ = id;
    score_ = score;
    // The floor is harmless: the token with weight 1 scores above -4, so no winner has a weight below 1e-18.
    scale_ = 0x1p52 * static_cast<double>(kBoundSlack) / std::max(exp_any(score), 1e-30);
  }
  float weight(float logit) const { return weight_of(logit, highest_, inverse_); }
  uint64_t stream() const { return stream_; }
  int32_t winner() const { return winner_; }

 private:
  static double exp_any(double x) {
    const int halvings = 6;  // keeps the argument in the range of exp_nonpositive
    double e = static_cast<double>(weight_of(static_cast<float>(-std::fabs(x)) / (1 << halvings), 0, 1));
    for (int i = 0; i < halvings; i++) e *= e;
    return x < 0 ? e : 1 / e;
  }

  uint64_t stream_;
  float highest_, inverse_;
  int32_t winner_ = -1;
  double score_ = 0;
  double scale_ = std::numeric_limits<double>::infinity();
};

void enter_chunk(Race& race, const Row& row, int c, float bound, const Gate& gate) {
  const float* x = row.chunk(c);
  for (int i = 0; i < kChunk; i++) {
    const int32_t id = c * kChunk + i;
    const int64_t noise = noise_bits(race.stream(), static_cast<uint64_t>(id));
    if (noise >= race.limit(bound) || x[i] == kNone || !gate.cut.keeps(id, x[i])) continue;
    if (race.weight(x[i]) >= gate.min_weight) race.enter(id, x[i], noise);
  }
}

TAILRACE_CLONES void run_race(Race& race, const Row& row, const float* bounds, const float* chunk_max,
                              const Gate& gate) {
  for (int c = 0; c < row.chunks; c++) {
    if (bounds[c] <= 0 || bounds[c] < gate.min_weight || order_key(chunk_max[c]) < gate.cut.key) continue;
    if (lowest_noise(race.stream(), c) < race.limit(bounds[c])) enter_chunk(race, row, c, bounds[c], gate);
  }
}

int32_t draw_from_row(Race& race, const Row& row, const Workspace& s, const Gate& gate) {
  const float* bounds = s.bounds.data();
  const float* chunk_max = s.chunk_max.data();
  const int first = static_cast<int>(std::max_element(chunk_max, chunk_max + row.chunks) - chunk_max);
  enter_chunk(race, row, first, bounds[first], gate);  // a good score to begin with; entering twice does no harm
  run_race(race, row, bounds, chunk_max, gate);
  return race.winner();
}

int32_t draw_from(Race& race, const std::vector<Candidate>& candidates, int count) {
  const Candidate* begin = candidates.data();
  const Candidate* end = begin + count;
  const auto* best = std::max_element(begin, end, [](auto& a, auto& b) { return a.logit < b.logit; });
  race.enter(best->id, best->logit);
  for (const auto* c = begin; c < end; c++) {
    const int64_t noise = noise_bits(race.stream(), static_cast<uint64_t>(c->id));
    if (noise < race.limit(c->weight * kBoundSlack)) race.enter(c->id, c->logit, noise);
  }
  return race.winner();
}

// ---- candidates ----

// Tokens with low <= logit < high, ids ascending; weights are not set. Without branches on a token: hits are unpredictable.
int gather(const Row& row, const float* chunk_max, float low, float high, std::vector<Candidate>& out) {
  Candidate* to = out.data();
  int count = 0;
  for (int c = 0; c < row.chunks; c++) {
    if (chunk_max[c] < low) continue;
    const float* x = row.chunk(c);
    for (int i = 0; i < kChunk; i++) {
      to[count].id = c * kChunk + i;
      count += static_cast<int>(x[i] >= low) & static_cast<int>(x[i] < high);
    }
  }
  for (int i = 0; i < count; i++) to[i].logit = row.at(to[i].id);
  return count;
}

// ---- narrowing a cut down on a whole row ----

constexpr int kMarks = 7, kNarrowing = 3;  // three passes of seven marks: 1/512 of the logits' range remains

// mass[j]: weights of the tokens with a logit of at least marks[j] (ascending), in one fixed order.
TAILRACE_CLONES void mass_above(const Row& row, const float* chunk_max, const float* weights, const float* marks,
                                double* mass) {
  constexpr int kGroup = 32;  // chunks added up in single precision
  std::fill_n(mass, kMarks, 0.0);
  for (int begin = 0; begin < row.chunks; begin += kGroup) {
    Lanes sum[kMarks] = {};
    const int end = begin + kGroup < row.chunks ? begin + kGroup : row.chunks;
    for (int c = begin; c < end; c++) {
      if (chunk_max[c] < marks[0]) continue;
      const float* from = row.chunk(c);
      for (int i = 0; i < kChunk; i += kLanes) {
        Lanes x, w;
        load(from + i, x);
        load(weights + static_cast<size_t>(c) * kChunk + i, w);
#pragma GCC unroll 7
        for (int j = 0; j < kMarks; j++)
          sum[j] += reinterpret_cast<Lanes>((x >= marks[j]) & reinterpret_cast<IntLanes>(w));
      }
    }
    for (int j = 0; j < kMarks; j++) {
      float group;
      across<true>(sum[j], group);
      mass[j] += static_cast<double>(group);
    }
  }
}

struct Range {
  float low, high;     // the cut lies at low <= logit < high
  double mass_beyond;  // of the tokens at or above high
};

void narrow(const Row& row, const Workspace& s, double target, Range& range) {
  float marks[kMarks];
  double mass[kMarks];
  for (int j = 0; j < kMarks; j++)
    marks[j] = range.low + (range.high - range.low) * (static_cast<float>(j + 1) / (kMarks + 1));
  mass_above(row, s.chunk_max.data(), s.weights.data(), marks, mass);
  for (int j = kMarks - 1; j >= 0; j--) {
    if (mass[j] >= target) {
      range.low = marks[j];
      return;
    }
    range.high = marks[j];
    range.mass_beyond = mass[j];
  }
}

// The smallest set of best tokens with a weight of `share` of the row's. Tokens so light that all of them together hold
// less than half of what is left out cannot be among them, which gives the lower end to begin with.
Cut cut_row(const Row& row, float share, float highest, float inverse, Workspace& s) {
  const double total = weigh(row, highest, inverse, s.weights.data()), target = share * total;
  const double least = std::max((1 - static_cast<double>(share)) * total * 0.5 / row.vocab, 1e-37);
  const double depth = (1 - log_positive(least)) / static_cast<double>(inverse);
  const float low = static_cast<float>(std::max(highest - depth, -static_cast<double>(FLT_MAX)));
  Range range{low, std::nextafter(highest, FLT_MAX), 0};
  for (int i = 0; i < kNarrowing; i++) narrow(row, s, target, range);
  const int count = gather(row, s.chunk_max.data(), range.low, range.high, s.candidates);
  if (count == 0) return {order_key(range.high), std::numeric_limits<int32_t>::max()};  // a share of 1 but for rounding
  for (int i = 0; i < count; i++) s.candidates[i].weight = s.weights[s.candidates[i].id];
  return find_cut(s.candidates, count, target - range.mass_beyond, true, s.refined);
}

// The k best tokens. The k-th largest chunk maximum already has k tokens at or above it.
int gather_top(const Row& row, int k, const float* chunk_max, Workspace& s) {
  float least = -FLT_MAX;
  if (k <= row.chunks) {
    std::copy(chunk_max, chunk_max + row.chunks, s.selection.begin());
    std::nth_element(s.selection.begin(), s.selection.begin() + (k - 1), s.selection.end(), std::greater<float>());
    least = std::max(least, s.selection[k - 1]);
  }
  const int count = gather(row, chunk_max, least, std::numeric_limits<float>::infinity(), s.candidates);
  if (count <= k) return count;
  return keep(s.candidates, count, find_cut(s.candidates, count, k, false, s.refined));
}

// ---- one row ----

struct RowArgs {
  float temperature, top_p, min_p, typical_p;
  int top_k;
  uint64_t stream;
};

// top_k, top_p and min_p over few tokens: the candidates that stay, at least one.
int filter_list(const Row& row, const RowArgs& a, float highest, float inverse, Workspace& s) {
  int count = gather_top(row, a.top_k, s.chunk_max.data(), s);
  double total = 0;
  for (int i = 0; i < count; i++) {
    Candidate& c = s.candidates[i];
    c.weight = weight_of(c.logit, highest, inverse);
    total += static_cast<double>(c.weight);
  }
  if (a.top_p < 1)
    count = keep(s.candidates, count, find_cut(s.candidates, count, a.top_p * total, true, s.refined));
  const auto begin = s.candidates.begin();
  const auto light = [&](const Candidate& c) { return c.weight < a.min_p; };
  return static_cast<int>(std::remove_if(begin, begin + count, light) - begin);
}

// All tokens with a weight that the gate lets pass, ids ascending. At least one.
int gather_passing(const Row& row, const Gate& gate, float highest, float inverse, Workspace& s) {
  weigh(row, highest, inverse, s.weights.data());
  int count = 0;
  for (int c = 0; c < row.chunks; c++) {
    if (s.chunk_max[static_cast<size_t>(c)] == kNone) continue;
    const float* x = row.chunk(c);
    for (int i = 0; i < kChunk; i++) {
      const int32_t id = c * kChunk + i;
      const float weight = s.weights[static_cast<size_t>(id)];
      if (weight > 0 && weight >= gate.min_weight && gate.cut.keeps(id, x[i]))
        s.candidates[count++] = {id, x[i], weight};
    }
  }
  return count;
}

// Of the candidates, the smallest set with `share` of their weight whose information is closest to the expected one
// (locally typical sampling; Meister, Pimentel, Wiher, Cotterell 2022). With x = log weight, information is log total - x
// and its expectation, the entropy, log total - E[x]: so a token's distance is |x - E[x]|.
int keep_typical(const Row& row, int count, float share, float highest, float inverse, Workspace& s) {
  double total = 0, sum = 0;
  for (int i = 0; i < count; i++) {
    Candidate& c = s.candidates[i];
    c.logit = (c.logit - highest) * inverse;
    if (c.weight <= 0) continue;
    total += static_cast<double>(c.weight);
    sum += static_cast<double>(c.weight) * static_cast<double>(c.logit);
  }
  const double expected = sum / total;
  for (int i = 0; i < count; i++) {
    float& x = s.candidates[i].logit;  // for the search: the most typical first
    x = std::max(-static_cast<float>(std::fabs(static_cast<double>(x) - expected)), -FLT_MAX);
  }
  count = keep(s.candidates, count, find_cut(s.candidates, count, share * total, true, s.refined));
  for (int i = 0; i < count; i++) s.candidates[i].logit = row.at(s.candidates[i].id);
  return count;
}

int32_t first_of(const Row& row, const float* chunk_max, float highest) {
  const int c = static_cast<int>(std::find(chunk_max, chunk_max + row.chunks, highest) - chunk_max);
  const float* x = row.chunk(c);
  return c * kChunk + static_cast<int32_t>(std::find(x, x + kChunk, highest) - x);
}

int32_t choose(const Row& row, const RowArgs& a, Workspace& s) {
  const float* chunk_max = s.chunk_max.data();
  const float highest = *std::max_element(chunk_max, chunk_max + row.chunks);
  if (highest == kNone) return -1;
  if (a.temperature == 0) return first_of(row, chunk_max, highest);
  const float inverse = std::min(std::max(1 / a.temperature, FLT_MIN), FLT_MAX);
  Race race(a.stream, highest, inverse);
  if (a.top_k > 0 && a.top_k < row.vocab) {
    int count = filter_list(row, a, highest, inverse, s);
    if (a.typical_p < 1) count = keep_typical(row, count, a.typical_p, highest, inverse, s);
    return draw_from(race, s.candidates, count);
  }
  bound_weights(chunk_max, row.chunks, highest, inverse, s.bounds.data());
  Gate gate;
  gate.min_weight = a.min_p;
  if (a.top_p < 1) gate.cut = cut_row(row, a.top_p, highest, inverse, s);
  if (a.typical_p < 1) {
    const int count = gather_passing(row, gate, highest, inverse, s);
    return draw_from(race, s.candidates, keep_typical(row, count, a.typical_p, highest, inverse, s));
  }
  return draw_from_row(race, row, s, gate);
}

// ---- bias, penalties, mask ----

bool has_penalties(const SampleArgs& args, int i) {
  const float* p = args.penalties + i * 3;
  return args.history_starts[i + 1] > args.history_starts[i] && !(p[0] == 0 && p[1] == 0 && p[2] == 1);
}

// Allowed tokens of row i, a bit each; nullptr when all are.
const uint32_t* mask_of(const SampleArgs& args, int i, int chunks) {
  const int place = args.mask_rows ? args.mask_rows[i] : i;
  return args.mask && place >= 0 ? args.mask + static_cast<size_t>(place) * chunks : nullptr;
}

bool has_edits(const SampleArgs& args, int i, int chunks) {
  return mask_of(args, i, chunks) || args.bias_starts[i + 1] > args.bias_starts[i] || has_penalties(args, i);
}

void apply_penalties(const SampleArgs& args, int i, float* x) {
  const float* penalty = args.penalties + i * 3;
  const float presence = penalty[0], frequency = penalty[1], repetition = penalty[2];
  for (int h = args.history_starts[i]; h < args.history_starts[i + 1]; h++) {
    float& v = x[args.history_ids[h]];
    const int count = args.history_counts[h];
    v = v > 0 ? v / repetition : v * repetition;
    v -= frequency * static_cast<float>(count);
    v -= count > 0 ? presence : 0;
  }
}

TAILRACE_CLONES void apply_mask(const uint32_t* mask, int chunks, float* x) {
  for (int c = 0; c < chunks; c++) {
    const uint32_t word = mask[c];
    if (word == 0xffffffffu) continue;
    float* v = x + static_cast<size_t>(c) * kChunk;
    for (uint32_t i = 0; i < kChunk; i++) v[i] = word & (1u << i) ? v[i] : kNone;
  }
}

Row edit(const Row& raw, const SampleArgs& args, int i, Workspace& s) {
  float* x = s.edited.data();
  for (int c = 0; c < raw.chunks; c++) std::copy_n(raw.chunk(c), kChunk, x + static_cast<size_t>(c) * kChunk);
  for (int b = args.bias_starts[i]; b < args.bias_starts[i + 1]; b++) x[args.bias_ids[b]] += args.bias_values[b];
  apply_penalties(args, i, x);
  if (const uint32_t* mask = mask_of(args, i, raw.chunks)) apply_mask(mask, raw.chunks, x);
  return make_row(x, raw.vocab, s.edited_tail);
}

// ---- log-probabilities ----

// log of the sum of exp of the raw logits.
double log_total(const Row& row, Workspace& s) {
  const float highest = *std::max_element(s.chunk_max.begin(), s.chunk_max.end());
  return static_cast<double>(highest) + log_positive(weigh(row, highest, 1, s.weights.data()));
}

void report_top(const Row& row, int wanted, double total, Workspace& s, int32_t* ids, float* logprobs) {
  if (wanted <= 0) return;
  const int count = gather_top(row, std::min(wanted, row.vocab), s.chunk_max.data(), s);
  const auto better = [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; };
  std::stable_sort(s.candidates.begin(), s.candidates.begin() + count, better);
  for (int j = 0; j < count; j++) {
    ids[j] = s.candidates[j].id;
    logprobs[j] = static_cast<float>(static_cast<double>(s.candidates[j].logit) - total);
  }
}

// The row's log_total, with its best tokens reported where `wanted` is at least 0.
double report(const Row& row, int wanted, Workspace& s, int32_t* ids, float* logprobs) {
  if (wanted < 0 || *std::max_element(s.chunk_max.begin(), s.chunk_max.end()) == kNone) return 0;
  const double total = log_total(row, s);
  report_top(row, wanted, total, s, ids, logprobs);
  return total;
}

void sample_row(const LogitsView& logits, const SampleArgs& args, int i, Workspace& s, SampleResult& out) {
  int32_t* top_ids = out.top_ids + static_cast<size_t>(i) * out.top_width;
  float* top_logprobs = out.top_logprobs + static_cast<size_t>(i) * out.top_width;
  std::fill_n(top_ids, out.top_width, -1);
  std::fill_n(top_logprobs, out.top_width, kNone);
  out.token[i] = -1;
  out.logprob[i] = kNone;

  const Row raw = make_row(logits.row(args.rows[i]), logits.vocab, s.raw_tail);
  if (!scan(raw, s.chunk_max.data())) return;
  const int wanted = alternatives(args.logprobs[i]);
  const bool edited = has_edits(args, i, raw.chunks), late = edited && args.logprobs[i] < -1;
  double total = late ? 0 : report(raw, wanted, s, top_ids, top_logprobs);
  const Row row = edited ? edit(raw, args, i, s) : raw;
  if (edited && !scan(row, s.chunk_max.data())) return;
  if (late) total = report(row, wanted, s, top_ids, top_logprobs);
  const uint64_t stream = noise_stream(args.key[i], args.position[i]);
  const RowArgs a{args.temperature[i], args.top_p[i], args.min_p[i], args.typical_p[i], args.top_k[i], stream};
  out.token[i] = choose(row, a, s);
  if (wanted >= 0 && out.token[i] >= 0)
    out.logprob[i] = static_cast<float>(static_cast<double>((late ? row : raw).at(out.token[i])) - total);
}

}  // namespace

// Rows are claimed one at a time; who computes a row does not show in its result.
void sample_rows(Team& team, const LogitsView& logits, const SampleArgs& args, SampleResult& result) {
  team.run([&](Team::Member& member) {
    static thread_local Workspace workspace;  // lives with the team's thread: about 1.6 MB at a vocabulary of 49152
    workspace.resize(logits.vocab);
    member.each(args.count, [&](int i) { sample_row(logits, args, i, workspace, result); });
  });
}

}  // namespace tailrace
