// Loops that do nothing but keep one unit of the CPU busy, to print its present speed beside a measured kernel.
#pragma once

namespace tailrace {

constexpr int kProbeChains = 10;  // independent accumulators: enough to hide latency

// `rounds` times kProbeChains products of 8 lanes, without loads. AVX2 only; empty where the build has none.
void madd_rounds(int rounds);  // vpmaddwd + vpaddd: 32 operations a product
void fma_rounds(int rounds);   // 16 operations a product

}  // namespace tailrace
