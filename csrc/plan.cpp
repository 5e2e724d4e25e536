#include "plan.h"

#include <algorithm>

namespace tailrace {

namespace {

// Consecutive rows of one sequence.
struct Run {
  int sequence, row, out_row, positions, first_position;
  int keys = 0;  // above 0: every row sees these, else those up to its own
};

class Cutter {
 public:
  Cutter(const HeadShare& share, int tile_rows, int window, AttentionPlan& plan)
      : kv_heads_(share.kv_heads.count),
        group_(share.group()),
        tile_positions_(std::max(1, tile_rows / group_)),
        window_(window),
        plan_(plan) {}

  void add(const Run& run) {
    plan_.rows.resize(run.out_row + run.positions);
    const int segments = end_segment(run) - first_segment(run);
    // A run of one tile per head would leave most of the team idle over a long context: cut it by segments.
    if (run.positions <= tile_positions_ && segments > 1) {
      add_split(run);
      return;
    }
    for (int first = 0; first < run.positions; first += tile_positions_) {
      Run part = run;
      part.row += first, part.out_row += first, part.first_position += first;
      part.positions = std::min(tile_positions_, run.positions - first);
      for (int head = 0; head < kv_heads_; ++head) push(part, head, first_segment(part), end_segment(part), -1);
    }
  }

  // Every member's part (team.h) gets as many long tiles as the others', and begins with them.
  void deal(int members) {
    std::stable_sort(plan_.tiles.begin(), plan_.tiles.end(),
                     [](const AttentionTile& a, const AttentionTile& b) { return cost(a) > cost(b); });
    std::vector<AttentionTile> dealt;
    dealt.reserve(plan_.tiles.size());
    for (int member = 0; member < members; ++member) {
      for (size_t i = member; i < plan_.tiles.size(); i += members) dealt.push_back(plan_.tiles[i]);
    }
    plan_.tiles.swap(dealt);
  }

 private:
  // The segments that any row of the run sees a key of.
  int first_segment(const Run& run) const {
    return window_ > 0 && run.first_position >= window_ ? (run.first_position - window_ + 1) / kSegmentTokens : 0;
  }
  static int end_segment(const Run& run) {
    return static_cast<int>(ceil_div(run.keys > 0 ? run.keys : run.first_position + run.positions, kSegmentTokens));
  }
  static int cost(const AttentionTile& t) { return t.positions * t.blocks_behind(t.first_segment, t.last_segment); }

  void push(const Run& run, int head, int first_segment, int last_segment, int64_t partial) {
    plan_.tiles.push_back({run.sequence, run.row, run.out_row, run.positions, run.first_position, head, first_segment,
                           last_segment, partial, run.keys});
  }

  void add_split(const Run& run) {
    const int64_t stride = int64_t{run.positions} * group_;
    const int begin = first_segment(run), end = end_segment(run);
    for (int i = 0; i < run.positions; ++i) {
      plan_.rows[run.out_row + i] = {end - begin, plan_.partials + int64_t{i} * group_, stride};
    }
    for (int head = 0; head < kv_heads_; ++head) {
      for (int s = begin; s < end; ++s, plan_.partials += stride) push(run, head, s, s + 1, plan_.partials);
    }
  }

  const int kv_heads_, group_, tile_positions_, window_;
  AttentionPlan& plan_;
};

std::vector<RowPlace> place_rows(const Batch& batch) {
  std::vector<RowPlace> places(batch.rows);
  for (int s = 0; s < batch.sequences; ++s) {
    const int32_t* table = batch.block_tables + int64_t{s} * batch.table_width;
    for (int row = batch.row_starts[s]; row < batch.row_starts[s + 1]; ++row) {
      const int position = batch.first_positions[s] + row - batch.row_starts[s];
      places[row] = {position, table[position / kBlockTokens]};
    }
  }
  return places;
}

void cut_logit_rows(const Batch& batch, Cutter& cutter) {
  int sequence = 0;
  for (int i = 0; i < batch.logits;) {
    const int row = batch.logit_rows[i];
    while (batch.row_starts[sequence + 1] <= row) ++sequence;
    int next = i + 1;
    while (next < batch.logits && batch.logit_rows[next] == row + next - i && batch.logit_rows[next] < batch.row_starts[sequence + 1]) {
      ++next;
    }
    cutter.add({sequence, row, i, next - i, batch.first_positions[sequence] + row - batch.row_starts[sequence]});
    i = next;
  }
}

WindowPlan cut_window(const HeadShare& share, int threads, const Batch& batch, int tile_rows, int window, bool encoder) {
  WindowPlan plan;
  plan.window = window;
  Cutter all(share, tile_rows, window, plan.all);
  for (int s = 0; s < batch.sequences; ++s) {
    const int first = batch.row_starts[s], rows = batch.row_starts[s + 1] - first;
    all.add({s, first, first, rows, batch.first_positions[s], encoder ? rows : 0});
  }
  all.deal(threads);
  if (encoder) return plan;
  Cutter logits(share, tile_rows, window, plan.logits);
  cut_logit_rows(batch, logits);
  logits.deal(threads);
  return plan;
}

std::vector<WindowPlan> cut_windows(const Spec& spec, const HeadShare& share, int threads, const Batch& batch, int tile_rows) {
  std::vector<WindowPlan> plans;
  for (int window : spec.windows) {
    const auto same = [window](const WindowPlan& p) { return p.window == window; };
    if (std::none_of(plans.begin(), plans.end(), same)) {
      plans.push_back(cut_window(share, threads, batch, tile_rows, window, spec.encoder));
    }
  }
  return plans;
}

}  // namespace

const WindowPlan& StepPlan::of(int rank, int window) const {
  const std::vector<WindowPlan>& plans = ranks[rank];
  return *std::find_if(plans.begin(), plans.end(), [window](const WindowPlan& plan) { return plan.window == window; });
}

StepPlan make_plan(const Spec& spec, const std::vector<HeadShare>& shares, const std::vector<int>& threads, const Batch& batch,
                   int tile_rows) {
  StepPlan plan;
  plan.places = place_rows(batch);
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    plan.ranks.push_back(cut_windows(spec, shares[rank], threads[rank], batch, tile_rows));
  }
  return plan;
}

}  // namespace tailrace
