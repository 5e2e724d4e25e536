#include "cpu.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tailrace {

namespace {

struct Features {
  bool avx2 = false, fma = false, f16c = false, bmi2 = false;
  bool avx512 = false, avx512_vnni = false, avx512_bf16 = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false, amx_permitted = false;
  bool avx2_set() const { return avx2 && fma && f16c && bmi2; }
  bool avx512_set() const { return avx2_set() && avx512 && avx512_vnni; }
  bool amx_set() const {
    return avx512_set() && avx512_bf16 && amx_tile && amx_int8 && amx_bf16 && amx_permitted;
  }
};

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(unsigned value, int index) { return (value >> index) & 1; }

// Register state the operating system saves (XCR0).
uint64_t saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Linux grants the tile registers on request, for the whole process.
bool request_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Features detect() {
  Features f;
  const Registers one = cpuid(1, 0);
  if (!bit(one.ecx, 27)) return f;  // no OSXSAVE
  const uint64_t state = saved_state();
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xE6) == 0xE6, tiles = (state & 0x60000) == 0x60000;
  const Registers seven = cpuid(7, 0), seven_one = cpuid(7, 1);
  f.fma = ymm && bit(one.ecx, 12);
  f.f16c = ymm && bit(one.ecx, 29);
  f.avx2 = ymm && bit(seven.ebx, 5);
  f.bmi2 = bit(seven.ebx, 8);
  f.avx512 = zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);  // F DQ BW VL
  f.avx512_vnni = zmm && bit(seven.ecx, 11);
  f.avx512_bf16 = zmm && bit(seven_one.eax, 5);
  f.amx_tile = tiles && bit(seven.edx, 24);
  f.amx_int8 = tiles && bit(seven.edx, 25);
  f.amx_bf16 = tiles && bit(seven.edx, 22);
  f.amx_permitted = f.amx_tile && request_tiles();
  return f;
}

#else

Features detect() { return {}; }

#endif

const Features& features() {
  static const Features found = detect();
  return found;
}

void add_if(std::vector<const Kernels*>& list, bool runnable, const Kernels* table) {
  if (runnable && table) list.push_back(table);
}

}  // namespace

std::vector<std::pair<std::string, bool>> cpu_features() {
  const Features& f = features();
  return {{"avx2", f.avx2},         {"fma", f.fma},
          {"f16c", f.f16c},         {"bmi2", f.bmi2},
          {"avx512", f.avx512},     {"avx512_vnni", f.avx512_vnni},
          {"avx512_bf16", f.avx512_bf16}, {"amx_tile", f.amx_tile},
          {"amx_int8", f.amx_int8}, {"amx_bf16", f.amx_bf16},
          {"amx_permitted", f.amx_permitted}};
}

std::vector<const Kernels*> runnable_variants() {
  std::vector<const Kernels*> list;
#if defined(TAILRACE_HAVE_AMX)
  add_if(list, features().amx_set(), amx_kernels());
#endif
  add_if(list, features().avx512_set(), avx512_kernels());
  add_if(list, features().avx2_set(), avx2_kernels());
  add_if(list, true, portable_kernels());
  return list;
}

std::vector<const Kernels*> testable_variants() {
  std::vector<const Kernels*> list = runnable_variants();
#if defined(TAILRACE_HAVE_AMX)
  add_if(list, features().avx2_set(), amx_emulated_kernels());
#endif
  add_if(list, features().avx2_set(), avx512_emulated_kernels());
  return list;
}

const Kernels& find_variant(const std::string& name) {
  std::string known;
  for (const Kernels* table : testable_variants()) {
    if (name == table->name) return *table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("variant '" + name + "' cannot run on this CPU; choose one of " + known);
}

}  // namespace tailrace
