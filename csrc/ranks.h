// Tensor parallel over ranks: which part of a model each rank has. A rank is a part of the team's threads with the memory beside them:
// a NUMA node. On a machine with one node there is one rank, which has everything.
//
//   matrices    cut by output rows at multiples of 32, in proportion to the ranks' threads. Inputs are never cut, so every sum is made
//               whole in one place and the bits are those of one rank.
//   attention   KV heads with their query heads, as evenly as they divide. With fewer KV heads than ranks, several ranks keep a copy of
//               the same KV head (its projections, its keys and values) and share its query heads.
//   rows        norms and quantization need a whole row: each rank has its part of the rows.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace tailrace {

struct Range {
  int first = 0, count = 0;
  int end() const { return first + count; }
};

// Part `index` of `units`, of as many parts as there are weights, in proportion to these; the first ones are the larger.
Range cut(int units, const std::vector<int>& weights, int index);

struct HeadShare {
  Range heads, kv_heads;
  int group() const { return kv_heads.count > 0 ? heads.count / kv_heads.count : 1; }
};

// `ranks` are the numbers of their threads. A rank may get nothing.
HeadShare share_heads(int heads, int kv_heads, const std::vector<int>& ranks, int rank);

// Of a whole model.
struct HeadDims {
  int heads, kv_heads, head_dim;
};

// Outputs that a rank computes of the matrix with this name ("qkv.0", "o.0", ...) and n outputs, in the order in which it has them.
std::vector<Range> share_outputs(const std::string& name, int n, const HeadDims& dims, const std::vector<int>& ranks, int rank);

// Copies what belongs to some outputs of packed weights: as if these alone had been packed. The outputs begin at multiples of 32.
void copy_outputs(const Kernels& kernels, const Linear& whole, const std::vector<Range>& outputs, uint8_t* to);

}  // namespace tailrace
