// What a step will do, worked out once before the team starts: where each row lies in the cache and how attention is cut.
#pragma once

#include <algorithm>
#include <vector>

#include "executor.h"

namespace tailrace {

// A block of query positions of one sequence under one KV head, over segments [first_segment, last_segment).
// `partial` < 0: the tile covers all its keys and writes the finished rows. Otherwise it covers one segment and leaves its
// result at that index of the partial arrays, to be merged with its neighbours when the rows are quantized.
// Heads are counted within a rank.
struct AttentionTile {
  int sequence, row, out_row, positions, first_position, kv_head;
  int first_segment, last_segment;
  int64_t partial;
  int keys;  // above 0: every row sees these

  // Blocks of these segments that any row may see.
  int blocks_behind(int first, int last) const {
    const int end = std::min(keys > 0 ? keys : first_position + positions, last * kSegmentTokens);
    return static_cast<int>(ceil_div(std::max(end - first * kSegmentTokens, 0), kBlockTokens));
  }
};

// How to merge a row that was split over segments: partial(head, segment) of the row is first + (head / group * segments + segment)
// * stride + head % group.
struct SplitRow {
  int segments = 0;  // 0: not split
  int64_t first = 0, stride = 0;
};

struct AttentionPlan {
  std::vector<AttentionTile> tiles;
  std::vector<SplitRow> rows;  // by out_row
  int64_t partials = 0;
};

// The two cuts of layers that share a window.
struct WindowPlan {
  int window = 0;
  AttentionPlan all;     // every row
  AttentionPlan logits;  // rows that need logits: enough for the last layer; out_row is the index among them
};

struct StepPlan {
  std::vector<RowPlace> places;
  std::vector<std::vector<WindowPlan>> ranks;  // of each: one for each window among the layers, in order of first use

  const WindowPlan& of(int rank, int window) const;
};

// `threads`: of each rank.
StepPlan make_plan(const Spec& spec, const std::vector<HeadShare>& shares, const std::vector<int>& threads, const Batch& batch,
                   int tile_rows);

}  // namespace tailrace
