#include "probe.h"

// Written as assembly: a compiler would share the equal products or spill the accumulators.
#if defined(__AVX2__) && defined(__FMA__)

namespace tailrace {

#define TAILRACE_MADD(acc, product) "vpmaddwd %%ymm14, %%ymm15, " product "\n\tvpaddd " product ", " acc ", " acc "\n\t"
#define TAILRACE_FMA(acc) "vfmadd231ps %%ymm14, %%ymm15, " acc "\n\t"

void madd_rounds(int rounds) {
  __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n\tvpxor %%ymm15, %%ymm15, %%ymm15" ::: "ymm14", "ymm15");
  for (int i = 0; i < rounds; ++i) {
    __asm__ volatile(TAILRACE_MADD("%%ymm0", "%%ymm10") TAILRACE_MADD("%%ymm1", "%%ymm11") TAILRACE_MADD("%%ymm2", "%%ymm12")
                         TAILRACE_MADD("%%ymm3", "%%ymm13") TAILRACE_MADD("%%ymm4", "%%ymm10") TAILRACE_MADD("%%ymm5", "%%ymm11")
                             TAILRACE_MADD("%%ymm6", "%%ymm12") TAILRACE_MADD("%%ymm7", "%%ymm13") TAILRACE_MADD("%%ymm8", "%%ymm10")
                                 TAILRACE_MADD("%%ymm9", "%%ymm11")::
                             : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11",
                               "ymm12", "ymm13");
  }
}

void fma_rounds(int rounds) {
  __asm__ volatile("vxorps %%ymm14, %%ymm14, %%ymm14\n\tvxorps %%ymm15, %%ymm15, %%ymm15" ::: "ymm14", "ymm15");
  for (int i = 0; i < rounds; ++i) {
    __asm__ volatile(TAILRACE_FMA("%%ymm0") TAILRACE_FMA("%%ymm1") TAILRACE_FMA("%%ymm2") TAILRACE_FMA("%%ymm3")
                         TAILRACE_FMA("%%ymm4") TAILRACE_FMA("%%ymm5") TAILRACE_FMA("%%ymm6") TAILRACE_FMA("%%ymm7")
                             TAILRACE_FMA("%%ymm8") TAILRACE_FMA("%%ymm9")::
                             : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9");
  }
}

}  // namespace tailrace

#else

namespace tailrace {
void madd_rounds(int) {}
void fma_rounds(int) {}
}  // namespace tailrace

#endif
