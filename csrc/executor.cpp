#include "executor.h"

#include <algorithm>
#include <stdexcept>

#include "checks.h"
#include "step.h"

namespace tailrace {

Model::Model(const Kernels& kernels, const Spec& spec, std::shared_ptr<Team> team)
    : kernels_(kernels), spec_(spec), team_(std::move(team)), parts_(std::make_shared<Parts>()) {
  check_spec(spec_);
  parts_->layers.resize(spec_.layers);
  parts_->shares.resize(team_->ranks().size());
  for (size_t rank = 0; rank < parts_->shares.size(); ++rank) {
    Share& share = parts_->shares[rank];
    share.heads = share_heads(spec_.heads, spec_.kv_heads, team_->ranks(), static_cast<int>(rank));
    share.layers.resize(spec_.layers);
  }
}

Model::Model(const Model& other, std::shared_ptr<Team> team)
    : kernels_(other.kernels_), spec_(other.spec_), team_(std::move(team)), parts_(other.parts_) {
  check(team_->ranks() == other.team_->ranks(), "team has other ranks than the model's");
  finish();
}

Model::~Model() { team_->settle(); }

void Model::set_embedding(EmbeddingFormat format, const uint8_t* rows, int64_t row_bytes) {
  parts_->embedding = {format, rows, row_bytes, spec_.hidden, spec_.embedding_scale};
}

void Model::set_rope(int table, const float* cos, const float* sin, int rope_dim) {
  check(table >= 0 && table < kMaxRopes, "table must be between 0 and 7");
  check(rope_dim >= 2 && rope_dim % 2 == 0 && rope_dim <= spec_.head_dim, "cos: rope_dim must be even and at most head_dim");
  const int64_t count = int64_t{spec_.max_positions} * (rope_dim / 2);
  if (static_cast<int>(parts_->ropes.size()) <= table) parts_->ropes.resize(table + 1);
  parts_->ropes[table] = {rope_dim, {cos, cos + count}, {sin, sin + count}};
}

void Model::set_positions(const float* rows) {
  parts_->positions.assign(rows, rows + int64_t{spec_.max_positions} * spec_.hidden);
}

void Model::set_norm(const std::string& name, const float* weight, int count) {
  std::vector<float>& part = parts_->norm(name);
  const int expected = Parts::is_head_norm(name) ? spec_.head_dim : spec_.hidden;
  check(count == expected, "weight of norm '" + name + "' must have " + std::to_string(expected) + " values");
  part.assign(weight, weight + count);
}

void Model::set_bias(const std::string& name, const float* bias, int count) {
  check(spec_.encoder || name.rfind("qkv.", 0) == 0, "name '" + name + "' is not a linear layer that takes a bias: qkv.N");
  const std::vector<std::vector<float>*> parts = parts_->biases(name);
  const int expected = bias_size(spec_, name);
  check(count == expected, "bias of '" + name + "' must have " + std::to_string(expected) + " values");
  if (parts.size() == 1) return parts[0]->assign(bias, bias + count);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::vector<float>& part = *parts[rank];
    part.clear();
    for (const Range& own : outputs(name, count, static_cast<int>(rank))) part.insert(part.end(), bias + own.first, bias + own.end());
  }
}

std::vector<Range> Model::outputs(const std::string& name, int n, int rank) const {
  return share_outputs(name, n, {spec_.heads, spec_.kv_heads, spec_.head_dim}, team_->ranks(), rank);
}

void Model::set_linear(const std::string& name, Format format, int n, int k, const uint8_t* packed, size_t packed_bytes,
                       const float* scale, const int32_t* wide, int wide_count) {
  std::lock_guard<std::mutex> lock(mutex_);
  parts_->linear(0, name);
  check_linear(spec_, name, n, k);
  check_wide(wide, wide_count, k);
  check((scale != nullptr) == (format != Format::bf16), "scale is needed for int8 and nib4, and only for them");
  check(packed_bytes == kernels_.packed_bytes(format, n, k, wide_count),
        "packed of '" + name + "' has " + std::to_string(packed_bytes) + " bytes, expected " +
            std::to_string(kernels_.packed_bytes(format, n, k, wide_count)));
  const Linear whole{format, n, static_cast<int>(round_up(n, kTileColumns)), k, packed, scale, wide, nullptr, wide_count};
  team_->on_each_rank([&](int rank) {
    const std::vector<Range> own = outputs(name, n, rank);
    OwnedLinear& part = parts_->linear(rank, name);
    part.assign(whole, own, nullptr);
    uint8_t* copy = parts_->shares[rank].store.room(kernels_.packed_bytes(format, part.view.n, k, wide_count));
    copy_outputs(kernels_, whole, own, copy);
    part.view.packed = copy;
  });
}

void Model::finish() {
  const std::string missing = parts_->missing(spec_);
  check(missing.empty(), "model is incomplete, missing: " + missing);
  step_ = std::make_unique<Step>(kernels_, spec_, *parts_, *team_, counters_);
}

void Model::begin(KvCache& kv, const Batch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  check(step_ != nullptr, "model is not finished: call finish() after setting every part");
  check(kv.ranks() == team_->ranks(), "kv was made for a team with other ranks");
  check_batch(spec_, kv, batch);
  step_->begin(kv, batch);
}

void Model::settle() {
  std::lock_guard<std::mutex> lock(mutex_);
  team_->settle();
  if (step_) step_->let_go();
}

void Model::set_timed(bool timed) {
  std::lock_guard<std::mutex> lock(mutex_);
  team_->settle();
  counters_.timed = timed;
}

LogitsView Model::logits() const {
  return step_ ? step_->logits() : LogitsView{nullptr, 0, spec_.vocab, round_up(spec_.vocab, kTileColumns)};
}

int Model::hidden_rows() const { return step_ ? step_->hidden_rows() : 0; }

const float* Model::hidden() const { return step_ ? step_->hidden() : nullptr; }

// An encoder's keys are of no use behind their layer, so that all layers share one.
KvLayout kv_layout(const Spec& spec, KvFormat format) { return {spec.encoder ? 1 : spec.layers, spec.kv_heads, spec.head_dim, format}; }

namespace {

// What of a block lies with a rank.
KvLayout layout_of_rank(KvLayout layout, int heads, const std::vector<int>& ranks, size_t rank) {
  layout.kv_heads = share_heads(heads, layout.kv_heads, ranks, static_cast<int>(rank)).kv_heads.count;
  return layout;
}

}  // namespace

int64_t kv_block_bytes(const KvLayout& layout, int heads, const std::vector<int>& ranks) {
  int64_t bytes = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) bytes += layout_of_rank(layout, heads, ranks, rank).block_bytes();
  return bytes;
}

KvCache::KvCache(const Spec& spec, KvFormat format, int num_blocks, std::shared_ptr<Team> team)
    : layout_(kv_layout(spec, format)), num_blocks_(num_blocks), team_(std::move(team)) {
  check(num_blocks > 0, "num_blocks must be positive");
  for (size_t rank = 0; rank < ranks().size(); ++rank) {
    const KvLayout layout = layout_of_rank(layout_, spec.heads, ranks(), rank);
    parts_.push_back({layout, Memory(static_cast<size_t>(num_blocks) * layout.block_bytes())});
  }
}

int64_t KvCache::block_bytes() const {
  int64_t bytes = 0;
  for (const PartOfRank& part : parts_) bytes += part.layout.block_bytes();
  return bytes;
}

void KvCache::copy_blocks(const int32_t* src, const int32_t* dst, int count) {
  for (int i = 0; i < count; ++i) {
    check(src[i] >= 0 && src[i] < num_blocks_, "src holds a block out of range: " + std::to_string(src[i]));
    check(dst[i] >= 0 && dst[i] < num_blocks_, "dst holds a block out of range: " + std::to_string(dst[i]));
  }
  team_->on_each_rank([&](int rank) {
    uint8_t* base = parts_[rank].memory.data();
    const int64_t bytes = parts_[rank].layout.block_bytes();
    for (int i = 0; i < count; ++i) std::memmove(base + dst[i] * bytes, base + src[i] * bytes, bytes);
  });
}

}  // namespace tailrace
