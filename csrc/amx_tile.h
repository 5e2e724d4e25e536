// The eight tile registers of AMX. Two implementations of the same few functions:
//   * the instructions, as inline assembly (GCC 12's intrinsics do not tell the compiler which memory they touch)
//   * TAILRACE_AMX_EMULATED: plain C++ that does what the manual says, so that the kernels run and are tested on any machine.
//     It is strict: what the CPU would refuse (a shape mismatch, a tile used before it is configured) traps.
//
// A tile is up to 16 rows of 64 bytes. C += A * B with
//   A  [rows][16 groups]     a group is 4 int8 or 2 bf16 neighbours along the inner dimension
//   B  [16 groups][16 columns]
//   C  [rows][16 columns]    int32 or float32
// Included inside a variant's anonymous namespace.

namespace tile {

// Tiles 0, 1 and 4 get `first` rows, tiles 2, 3 and 5 `second` rows (0: not to be used), tiles 6 and 7 sixteen:
// accumulators 0 1 / 2 3 of two row tiles by two column tiles, left operands 4 5, right operands 6 7.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  Config(int first, int second) {
    const int wanted[8] = {first, first, second, second, first, second, 16, 16};
    for (int t = 0; t < 8; ++t) {
      rows[t] = static_cast<uint8_t>(wanted[t]);
      row_bytes[t] = wanted[t] ? 64 : 0;
    }
  }
};

#if !defined(TAILRACE_AMX_EMULATED)

inline void configure(int first, int second) {
  const Config config(first, second);
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline void release() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int C, int A, int B>
inline void dot_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
inline void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else

struct Register {
  int rows = 0;
  alignas(64) uint8_t data[16][64] = {};
};
thread_local Register registers[8];

inline void require(bool legal) {
  if (!legal) __builtin_trap();
}

inline void configure(int first, int second) {
  const Config config(first, second);
  for (int t = 0; t < 8; ++t) {
    registers[t].rows = config.rows[t];
    require(config.rows[t] <= 16);
    __builtin_memset(registers[t].data, 0, sizeof registers[t].data);
  }
}
inline void release() {
  for (Register& r : registers) r.rows = 0;
}

template <int T>
inline void load(const void* from, int64_t stride) {
  Register& r = registers[T];
  require(r.rows > 0);
  __builtin_memset(r.data, 0, sizeof r.data);
  for (int i = 0; i < r.rows; ++i) __builtin_memcpy(r.data[i], static_cast<const uint8_t*>(from) + i * stride, 64);
}
template <int T>
inline void store(void* to, int64_t stride) {
  require(registers[T].rows > 0);
  for (int i = 0; i < registers[T].rows; ++i) __builtin_memcpy(static_cast<uint8_t*>(to) + i * stride, registers[T].data[i], 64);
}
template <int T>
inline void zero() {
  require(registers[T].rows > 0);
  __builtin_memset(registers[T].data, 0, sizeof registers[T].data);
}

inline void require_shapes(int c, int a, int b) {
  require(registers[c].rows > 0 && registers[a].rows == registers[c].rows && registers[b].rows == 16);
}

template <int C, int A, int B>
inline void dot_int8() {
  require_shapes(C, A, B);
  for (int m = 0; m < registers[C].rows; ++m) {
    int32_t sum[16];
    __builtin_memcpy(sum, registers[C].data[m], 64);
    for (int k = 0; k < 16; ++k) {
      const int8_t* a = reinterpret_cast<const int8_t*>(registers[A].data[m]) + 4 * k;
      const int8_t* b = reinterpret_cast<const int8_t*>(registers[B].data[k]);
      for (int n = 0; n < 16; ++n) {
        const int dot = a[0] * b[4 * n] + a[1] * b[4 * n + 1] + a[2] * b[4 * n + 2] + a[3] * b[4 * n + 3];
        sum[n] = static_cast<int32_t>(static_cast<uint32_t>(sum[n]) + static_cast<uint32_t>(dot));
      }
    }
    __builtin_memcpy(registers[C].data[m], sum, 64);
  }
}

// Denormal inputs and results count as zero of the same sign.
inline float flush(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits = (bits & 0x7F800000) ? bits : bits & 0x80000000;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
inline float widened(uint32_t pair, int odd) {
  const uint32_t bits = odd ? pair & 0xFFFF0000 : pair << 16;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return flush(x);
}

// Even and odd elements are summed apart over the 16 pairs by fused multiply-adds, then even + odd is added to C.
template <int C, int A, int B>
inline void dot_bf16() {
  require_shapes(C, A, B);
  for (int m = 0; m < registers[C].rows; ++m) {
    float even[16] = {}, odd[16] = {}, sum[16];
    for (int k = 0; k < 16; ++k) {
      uint32_t a, b[16];
      __builtin_memcpy(&a, registers[A].data[m] + 4 * k, 4);
      __builtin_memcpy(b, registers[B].data[k], 64);
      const float a0 = widened(a, 0), a1 = widened(a, 1);
      for (int n = 0; n < 16; ++n) {
        even[n] = flush(__builtin_fmaf(a0, widened(b[n], 0), even[n]));
        odd[n] = flush(__builtin_fmaf(a1, widened(b[n], 1), odd[n]));
      }
    }
    __builtin_memcpy(sum, registers[C].data[m], 64);
    for (int n = 0; n < 16; ++n) sum[n] = flush(flush(sum[n]) + flush(even[n] + odd[n]));
    __builtin_memcpy(registers[C].data[m], sum, 64);
  }
}

#endif

}  // namespace tile
