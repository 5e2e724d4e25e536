// A row of logits by chunks of 32 tokens, and the passes over all of it. Included by sampler.cpp inside its anonymous
// namespace; the hot loops are cloned for AVX2.

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TAILRACE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define TAILRACE_CLONES
#endif

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kBoundSlack = 1.0001f;  // covers the rounding of weights and of the screening itself

// ---- one row's logits by chunks ----

struct Row {
  const float* base;
  int vocab;
  int chunks;
  const float* tail;  // the last chunk, padded with -infinity

  const float* chunk(int c) const { return c == chunks - 1 ? tail : base + static_cast<size_t>(c) * kChunk; }
  float at(int id) const { return chunk(id / kChunk)[id % kChunk]; }
};

Row make_row(const float* base, int vocab, float* tail) {
  const int chunks = (vocab + kChunk - 1) / kChunk, last = chunks - 1;
  const float* source = base + static_cast<size_t>(last) * kChunk;
  for (int i = 0; i < kChunk; i++) tail[i] = last * kChunk + i < vocab ? source[i] : kNone;
  return {base, vocab, chunks, tail};
}

struct Candidate {
  int32_t id;
  float logit;
  float weight;
};

struct Workspace {
  std::vector<float> edited, weights, chunk_max, bounds, selection;
  std::vector<Candidate> candidates, refined;
  float raw_tail[kChunk], edited_tail[kChunk];

  void resize(int vocab) {
    const size_t chunks = (static_cast<size_t>(vocab) + kChunk - 1) / kChunk;
    if (chunk_max.size() == chunks) return;
    edited.resize(chunks * kChunk);
    weights.resize(chunks * kChunk);
    for (auto* v : {&chunk_max, &bounds, &selection}) v->resize(chunks);
    for (auto* v : {&candidates, &refined}) v->resize(chunks * kChunk);
  }
};

// ---- passes over the vocabulary ----

// GCC learned Clang's builtin in version 12.
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
#define TAILRACE_SHUFFLE(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define TAILRACE_SHUFFLE(x, ...) __builtin_shuffle(x, IntLanes{__VA_ARGS__})
#endif

// out := the largest of x's lanes (with Add: their sum).
template <bool Add>
TAILRACE_INLINE void across(const Lanes& all, float& out) {
  Lanes x = all;
  const Lanes half = TAILRACE_SHUFFLE(x, 4, 5, 6, 7, 0, 1, 2, 3);
  x = Add ? x + half : x > half ? x : half;
  const Lanes quarter = TAILRACE_SHUFFLE(x, 2, 3, 0, 1, 2, 3, 0, 1);
  x = Add ? x + quarter : x > quarter ? x : quarter;
  const float a = x[0], b = x[1];
  out = Add ? a + b : a > b ? a : b;
}

// Largest logit of each chunk. False when some logit is NaN or +infinity.
TAILRACE_CLONES bool scan(const Row& row, float* chunk_max) {
  IntLanes good = {-1, -1, -1, -1, -1, -1, -1, -1};
  for (int c = 0; c < row.chunks; c++) {
    const float* from = row.chunk(c);
    Lanes x[4];
    for (int i = 0; i < 4; i++) load(from + i * kLanes, x[i]);
    for (int i = 0; i < 4; i++) good &= x[i] <= FLT_MAX;
    const Lanes low = x[0] > x[1] ? x[0] : x[1], high = x[2] > x[3] ? x[2] : x[3];
    across<false>(low > high ? low : high, chunk_max[c]);
  }
  int32_t all = -1;
  for (int i = 0; i < kLanes; i++) all &= good[i];
  return all == -1;
}

// weights[id] of the whole row; returns their sum, chunk after chunk.
TAILRACE_CLONES double weigh(const Row& row, float highest, float inverse, float* weights) {
  double total = 0;
  for (int c = 0; c < row.chunks; c++) {
    const float* x = row.chunk(c);
    float* w = weights + static_cast<size_t>(c) * kChunk;
    Lanes part[4];
    for (int i = 0; i < 4; i++) {
      weights_of(x + i * kLanes, highest, inverse, w + i * kLanes);
      load(w + i * kLanes, part[i]);
    }
    float sum;
    across<true>((part[0] + part[1]) + (part[2] + part[3]), sum);
    total += static_cast<double>(sum);
  }
  return total;
}

// bounds[c]: no weight in chunk c is larger.
TAILRACE_CLONES void bound_weights(const float* chunk_max, int chunks, float highest, float inverse, float* bounds) {
  for (int c = 0; c < chunks; c++) bounds[c] = weight_of(chunk_max[c], highest, inverse) * kBoundSlack;
}

using NoiseLanes = int64_t __attribute__((vector_size(32)));
using HashLanes = uint64_t __attribute__((vector_size(32)));

// Smallest noise bits in a chunk: noise_bits() of 32 tokens, four at once.
TAILRACE_INLINE int64_t lowest_noise(uint64_t stream, int c) {
  constexpr HashLanes kStep = {0, kGolden, 2 * kGolden, 3 * kGolden};
  HashLanes at = kStep + (stream + static_cast<uint64_t>(c) * kChunk * kGolden);
  NoiseLanes low = NoiseLanes{} + std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kChunk / 4; i++, at += 4 * kGolden) {
    HashLanes z = (at ^ (at >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    const NoiseLanes r = reinterpret_cast<NoiseLanes>((z ^ (z >> 31)) >> 12);
    low = r < low ? r : low;
  }
  const int64_t a = low[0] < low[1] ? low[0] : low[1], b = low[2] < low[3] ? low[2] : low[3];
  return a < b ? a : b;
}
