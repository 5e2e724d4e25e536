// Eight float lanes in plain vector extensions, and the few functions built on them. Included by each variant inside its own
// anonymous namespace, so it is compiled with that variant's flags. Only add, multiply, divide and square root are used
// (no fused multiply-add): every variant gets the same bits from everything in this file and in rows_inl.h.

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int8_t i8x8 __attribute__((vector_size(8)));

constexpr int kLanes = 8;
constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest even integer
constexpr int32_t kRoundBits = 0x4B400000;

inline f32x8 splat(float x) { return f32x8{x, x, x, x, x, x, x, x}; }
inline f32x8 load8(const float* p) {
  f32x8 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store8(float* p, f32x8 v) { __builtin_memcpy(p, &v, sizeof v); }
inline i32x8 bits(f32x8 v) { return (i32x8)v; }
inline f32x8 from_bits(i32x8 v) { return (f32x8)v; }

inline f32x8 max8(f32x8 a, f32x8 b) {
#if defined(__AVX__)
  return (f32x8)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
inline f32x8 min8(f32x8 a, f32x8 b) {
#if defined(__AVX__)
  return (f32x8)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
inline f32x8 abs8(f32x8 v) { return from_bits(bits(v) & 0x7FFFFFFF); }

inline float sum_lanes(f32x8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
inline float max_lanes(f32x8 v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// Nearest-even integers of |v| < 2^22.
inline i32x8 round8(f32x8 v) { return bits(v + kRoundMagic) - kRoundBits; }

inline i16x8 narrow16(i32x8 v) { return __builtin_convertvector(v, i16x8); }

// 2^x, relative error below 3e-7; 0 below -126, 2^127 above 127. Minimax polynomial of degree 6 on [-1/2, 1/2].
inline f32x8 exp2_8(f32x8 x) {
  const f32x8 clamped = min8(max8(x, splat(-126.0f)), splat(127.0f));
  const f32x8 shifted = clamped + kRoundMagic;
  const f32x8 f = clamped - (shifted - kRoundMagic);
  f32x8 p = splat(1.5353362e-4f);
  p = p * f + 1.3398874e-3f;
  p = p * f + 9.6184373e-3f;
  p = p * f + 5.5503324e-2f;
  p = p * f + 2.4022648e-1f;
  p = p * f + 6.9314720e-1f;
  p = p * f + 1.0f;
  const i32x8 scaled = bits(p) + ((bits(shifted) - kRoundBits) << 23);
  const i32x8 keep = x >= splat(-126.0f);
  return from_bits(scaled & keep);
}

inline float exp2_1(float x) { return exp2_8(splat(x))[0]; }

// x / (1 + e^-x)
inline f32x8 silu8(f32x8 x) { return x / (1.0f + exp2_8(x * -1.44269504f)); }

// x (1 + tanh u) / 2 = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3)
inline f32x8 gelu8(f32x8 x) { return x / (1.0f + exp2_8(x * (x * x * -0.102943240f + -2.30220818f))); }

// x (1 + erf(x / sqrt 2)) / 2; 1 - erf y by formula 7.1.26 of Abramowitz and Stegun, absolute error below 2e-7.
inline f32x8 gelu_erf8(f32x8 x) {
  const f32x8 y = abs8(x) * 0.707106781f;
  const f32x8 t = 1.0f / (1.0f + y * 0.3275911f);
  f32x8 p = splat(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const f32x8 tail = p * t * exp2_8(y * y * -1.44269504f) * 0.5f;
  const i32x8 negative = x < splat(0);
  return x * from_bits((bits(tail) & negative) | (bits(1.0f - tail) & ~negative));
}

inline f32x8 gated8(Activation activation, f32x8 gate, f32x8 up) {
  return (activation == Activation::silu ? silu8(gate) : gelu8(gate)) * up;
}

// cap * tanh(x / cap), with tanh y = 1 - 2 / (1 + e^2y); absolute error below cap * 3e-7.
inline void softcap(float* x, int count, float cap) {
  const float inv = 2.88539008f / cap;
  for (int i = 0; i < count; i += kLanes) store8(x + i, (1.0f - 2.0f / (1.0f + exp2_8(load8(x + i) * inv))) * cap);
}

inline bf16 to_bf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return static_cast<bf16>((u >> 16) | 0x40);
  return static_cast<bf16>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}
inline float from_bf16(bf16 x) {
  const uint32_t u = static_cast<uint32_t>(x) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline float from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7FFF;
  if (magnitude < 0x400) {  // zero and subnormals: magnitude * 2^-24 exactly
    const float f = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  const uint32_t u = sign | (magnitude >= 0x7C00 ? 0x7F800000 | (magnitude << 13) : (magnitude << 13) + 0x38000000);
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
