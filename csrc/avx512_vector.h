// 512-bit vectors: GCC's own vector types, and the few operations these have no operator for. Two implementations of those:
//   * the AVX-512 instructions
//   * TAILRACE_AVX512_EMULATED: the same in C++ and AVX2, so that the kernels run and are tested on machines without AVX-512
// Included inside a variant's anonymous namespace.

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int16_t i16x32 __attribute__((vector_size(64)));
typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));

template <class Vector>
inline Vector load64(const void* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class Vector>
inline void store64(void* p, Vector v) {
  __builtin_memcpy(p, &v, sizeof v);
}

#if !defined(TAILRACE_AVX512_EMULATED)

// The four bytes at p in every lane.
inline i32x16 splat32(const void* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return (i32x16)_mm512_set1_epi32(value);
}
// Each lane += four products of an unsigned byte of `a` and a signed byte of `b`. Sums wrap (vpdpbusd).
inline i32x16 dot_bytes(i32x16 sum, i32x16 a, i32x16 b) {
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
// Each lane += two products of signed 16-bit words. Sums wrap (vpdpwssd).
inline i32x16 dot_words(i32x16 sum, i32x16 a, i32x16 b) {
  return (i32x16)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
// Byte i of each 16 becomes v[control[i] % 16] of the same 16, or 0 where control[i] is 128 or more.
inline u8x64 shuffle_bytes(u8x64 v, u8x64 control) { return (u8x64)_mm512_shuffle_epi8((__m512i)v, (__m512i)control); }
inline f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) { return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

#else

inline i32x16 splat32(const void* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return i32x16{} + value;
}

// Two products of signed 16-bit words, summed, in every lane.
inline i32x16 pair_products(i32x16 a, i32x16 b) {
  __m256i x[2], y[2];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  for (int half = 0; half < 2; ++half) x[half] = _mm256_madd_epi16(x[half], y[half]);
  return load64<i32x16>(x);
}
inline i32x16 dot_words(i32x16 sum, i32x16 a, i32x16 b) { return sum + pair_products(a, b); }

// Even and odd bytes as words: unsigned of a, signed of b.
inline i32x16 dot_bytes(i32x16 sum, i32x16 a, i32x16 b) {
  const i32x16 even = pair_products(a & 0x00FF00FF, (i32x16)((i16x32)((u16x32)b << 8) >> 8));
  return sum + even + pair_products((i32x16)((u16x32)a >> 8), (i32x16)((i16x32)b >> 8));
}

inline u8x64 shuffle_bytes(u8x64 v, u8x64 control) {
  __m256i x[2], y[2];
  __builtin_memcpy(x, &v, sizeof x);
  __builtin_memcpy(y, &control, sizeof y);
  for (int half = 0; half < 2; ++half) x[half] = _mm256_shuffle_epi8(x[half], y[half]);
  return load64<u8x64>(x);
}

inline f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) {
  __m256 x[2], y[2], z[2];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  __builtin_memcpy(z, &c, sizeof z);
  for (int half = 0; half < 2; ++half) z[half] = _mm256_fmadd_ps(x[half], y[half], z[half]);
  return load64<f32x16>(z);
}

#endif
