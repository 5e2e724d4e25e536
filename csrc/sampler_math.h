// The sampler's numbers: exp, log and keyed noise in fixed operations, the same bits on every machine. Only additions,
// multiplications, divisions and comparisons of IEEE numbers; compile with -ffp-contract=off.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#define TAILRACE_INLINE inline __attribute__((always_inline))

namespace tailrace::sampling {

constexpr int kChunk = 32;  // consecutive tokens

// ---- exp of non-positive numbers, log of positive ones ----

// Eight numbers at once; compilers without 256-bit registers split them. Passed by reference only: as values they would
// depend on the instruction set of the caller.
using Lanes = float __attribute__((vector_size(32)));
using IntLanes = int32_t __attribute__((vector_size(32)));
constexpr int kLanes = 8;

TAILRACE_INLINE void load(const float* from, Lanes& x) { std::memcpy(&x, from, sizeof x); }
TAILRACE_INLINE void store(const Lanes& x, float* to) { std::memcpy(to, &x, sizeof x); }

// x := exp(x), for one number or eight: the same operations. Relative error below 2e-7; 0 below -87.
template <class Float, class Int>
TAILRACE_INLINE void exp_nonpositive(Float& x) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const Float shifted = x * 1.44269504f + kMagic;
  const Float n = shifted - kMagic;
  const Float f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Float p = f * 1.3888889e-3f + 8.3333333e-3f;
  p = p * f + 4.1666667e-2f;
  p = p * f + 1.6666667e-1f;
  p = p * f + 0.5f;
  p = (p * f) * f + f + 1.f;
  Int bits;
  std::memcpy(&bits, &shifted, sizeof x);
  bits = (bits - (0x4b400000 - 127)) << 23;
  Float scale;
  std::memcpy(&scale, &bits, sizeof x);
  p = p * scale;
  x = x > -87.f ? p : p * 0.f;
}

TAILRACE_INLINE float weight_of(float logit, float highest, float inverse) {
  float x = (logit - highest) * inverse;
  x = x > -88.f ? x : -88.f;
  exp_nonpositive<float, int32_t>(x);
  return x;
}

TAILRACE_INLINE void weights_of(const float* logits, float highest, float inverse, float* weights) {
  Lanes x;
  load(logits, x);
  x = (x - highest) * inverse;
  x = x > -88.f ? x : Lanes{} - 88.f;
  exp_nonpositive<Lanes, IntLanes>(x);
  store(x, weights);
}

inline double log_positive(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m;
  std::memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) m *= 0.5, exponent++;
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double p = 1.0 / 19;
  for (int k = 17; k >= 1; k -= 2) p = p * s2 + 1.0 / k;
  return exponent * 0.6931471805599453 + 2 * s * p;
}

// ---- noise ----

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

// The finalizer of splitmix64 (Steele, Lea, Flood 2014; constants by Stafford).
TAILRACE_INLINE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline uint64_t noise_stream(uint64_t key, int32_t position) {
  return mix(mix(key + kGolden) ^ (static_cast<uint64_t>(position) * 0xd1342543de82ef95ull + 1));
}

TAILRACE_INLINE int64_t noise_bits(uint64_t stream, uint64_t id) {
  return static_cast<int64_t>(mix(stream + id * kGolden) >> 12);
}

inline double gumbel(int64_t r) {
  const double u = 1 - (static_cast<double>(r) + 0.5) * 0x1p-52;
  return -log_positive(-log_positive(u));
}

}  // namespace tailrace::sampling
