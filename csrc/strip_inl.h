// A strip: a few query rows over one segment, what each of them sees, and their softmax. Included after vector_inl.h inside a
// variant's anonymous namespace.

constexpr int kStripRows = 16;  // at most

struct Strip {
  const float* q[kStripRows];  // row pointers
  int first[kStripRows];       // each row sees keys [first, visible) of this segment
  int visible[kStripRows];
  int rows;
  int start;            // of the block with the first key that any row sees
  int longest;          // end of the last; below start when no row sees any
};

inline int within_segment(int key) { return key < 0 ? 0 : key > kSegmentTokens ? kSegmentTokens : key; }

inline Strip make_strip(const AttentionTask& task, int segment, int first_row, int rows) {
  Strip strip;
  strip.rows = rows;
  strip.start = kSegmentTokens;
  strip.longest = 0;
  const int head_dim = task.kv.layout.head_dim;
  for (int r = 0; r < rows; ++r) {
    const int position = (first_row + r) / task.group, head = (first_row + r) % task.group;
    strip.q[r] = task.q + position * task.q_stride + head * head_dim;
    const int at = task.first_position + position, offset = segment * kSegmentTokens;
    const int first = within_segment(task.first_key(at) - offset), visible = within_segment(task.end_key(at) - offset);
    strip.first[r] = first;
    strip.visible[r] = first < visible ? visible : 0;
    if (strip.visible[r] > strip.longest) strip.longest = visible;
    if (strip.visible[r] > 0 && first < strip.start) strip.start = first;
  }
  strip.start = strip.start / kBlockTokens * kBlockTokens;
  return strip;
}

inline int32_t block_of(const AttentionTask& task, int segment, int token) {
  return task.block_table[(segment * kSegmentTokens + token) / kBlockTokens];
}

// Scores -> weights in place, of row `r` of a strip; what it does not see becomes 0, up to the strip's last tile.
inline void row_softmax(const Strip& strip, int r, float* s, float* max, float* sum) {
  const int first = strip.first[r], visible = strip.visible[r], width = (strip.longest + 15) / 16 * 16;
  const i32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  const f32x8 lowest = splat(-__builtin_inff());
  f32x8 top = lowest;
  for (int t = strip.start; t < visible; t += kLanes) {
    const i32x8 seen = (lane + t < visible) & (lane + t >= first);
    const f32x8 x = from_bits((bits(load8(s + t)) & seen) | (bits(lowest) & ~seen));
    store8(s + t, x);
    top = max8(x, top);
  }
  *max = max_lanes(top);
  f32x8 total = splat(0);
  int t = strip.start;
  for (; t < visible; t += kLanes) {
    const f32x8 p = exp2_8(load8(s + t) - *max);
    store8(s + t, p);
    total += p;
  }
  for (; t < width; t += kLanes) store8(s + t, splat(0));
  *sum = sum_lanes(total);
}
