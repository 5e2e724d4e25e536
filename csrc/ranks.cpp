#include "ranks.h"

#include <algorithm>
#include <numeric>

namespace tailrace {

namespace {

Range times(const Range& range, int factor) { return {range.first * factor, range.count * factor}; }
Range behind(int offset, const Range& range) { return {offset + range.first, range.count}; }

uint8_t* append(uint8_t* to, const uint8_t* from, size_t bytes) {
  if (bytes) std::memcpy(to, from, bytes);
  return to + bytes;
}

}  // namespace

Range cut(int units, const std::vector<int>& weights, int index) {
  const int64_t before = std::accumulate(weights.begin(), weights.begin() + index, int64_t{0});
  const int64_t total = std::accumulate(weights.begin() + index, weights.end(), before);
  const auto bound = [&](int64_t weight) { return static_cast<int>(ceil_div(units * weight, total)); };
  const int first = bound(before);
  return {first, bound(before + weights[index]) - first};
}

HeadShare share_heads(int heads, int kv_heads, const std::vector<int>& ranks, int rank) {
  const int group = heads / kv_heads, count = static_cast<int>(ranks.size());
  if (kv_heads >= count) {
    const Range kv = cut(kv_heads, ranks, rank);
    return {times(kv, group), kv};
  }
  const int kv_head = rank * kv_heads / count;
  const auto first_rank = [&](int head) { return static_cast<int>(ceil_div(int64_t{head} * count, kv_heads)); };
  const int first = first_rank(kv_head);
  const Range part = cut(group, {ranks.begin() + first, ranks.begin() + first_rank(kv_head + 1)}, rank - first);
  return {behind(kv_head * group, part), {kv_head, part.count > 0 ? 1 : 0}};
}

std::vector<Range> share_outputs(const std::string& name, int n, const HeadDims& dims, const std::vector<int>& ranks, int rank) {
  if (name.rfind("qkv.", 0) == 0) {
    const HeadShare share = share_heads(dims.heads, dims.kv_heads, ranks, rank);
    const Range kv = times(share.kv_heads, dims.head_dim);
    return {times(share.heads, dims.head_dim), behind(dims.heads * dims.head_dim, kv),
            behind((dims.heads + dims.kv_heads) * dims.head_dim, kv)};
  }
  Range own = times(cut(static_cast<int>(ceil_div(n, kTileColumns)), ranks, rank), kTileColumns);
  own.count = std::max(0, std::min(own.end(), n) - own.first);
  return {own};
}

void copy_outputs(const Kernels& kernels, const Linear& whole, const std::vector<Range>& outputs, uint8_t* to) {
  const size_t tile = kernels.tile_bytes(whole.format, whole.k, whole.wide_count), tiles = whole.n_pad / kTileColumns;
  const size_t all = kernels.packed_bytes(whole.format, whole.n, whole.k, whole.wide_count);
  const size_t more = (all - tiles * tile) / whole.n_pad;  // bytes an output, behind the tiles
  for (const Range& part : outputs) {
    to = append(to, whole.packed + part.first / kTileColumns * tile, ceil_div(part.count, kTileColumns) * tile);
  }
  for (const Range& part : outputs) {
    to = append(to, whole.packed + tiles * tile + part.first * more, round_up(part.count, kTileColumns) * more);
  }
}

}  // namespace tailrace
