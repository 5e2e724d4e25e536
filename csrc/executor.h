// The model and its step: embed, all layers, logits of the rows that need them, in one hand-off to the team.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "ranks.h"
#include "team.h"

namespace tailrace {

// Logits of the last step, kept until the next: row r, token t is data[r * stride + t], t < vocab.
struct LogitsView {
  const float* data = nullptr;
  int rows = 0;
  int vocab = 0;
  int64_t stride = 0;  // round_up(vocab, 32); columns past vocab are not tokens
  const float* row(int r) const { return data + r * stride; }
};

// A model's shape, and how its decoder departs from the plain one (SiLU, scores over sqrt(head_dim), every key, one rope).
struct Spec {
  int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_positions;
  float norm_eps;
  Activation activation = Activation::silu;
  float embedding_scale = 1;
  double attention_scale = 0;   // 0: 1 / sqrt(head_dim)
  float attention_softcap = 0;  // 0: none
  float logit_softcap = 0;
  std::vector<int> windows;     // by layer: keys a query sees, itself included; 0: all
  std::vector<int> ropes;       // by layer: its rope table
  // An encoder: every token sees all of its sequence, positions are added to the embedding, a layer norm stands behind each sum,
  // and the feed-forward is gelu(up) down, all with biases. It has no head; a sequence is computed whole, in one step.
  bool encoder = false;
};

constexpr int kMaxRopes = 8;

class Adapter;

// One step over a ragged batch; shapes as in _native.pyi. Checked by Model::forward.
struct Batch {
  const int32_t* token_ids;        // [rows]
  const int32_t* row_starts;       // [sequences + 1]
  const int32_t* first_positions;  // [sequences]
  const int32_t* block_tables;     // [sequences][table_width]
  const int32_t* logit_rows;       // [logits]
  int rows, sequences, table_width, logits;
  int hidden_only = 0;  // of the logit rows, so many at the end get their hidden states and no logits
  const std::shared_ptr<const Adapter>* adapters = nullptr;  // [sequences], null for one without; or null
};

class KvCache;

// Seconds by part, as member 0 of the team saw them, waiting for the others included; `wait` is that waiting alone.
enum class Part : int { embed, norm, qkv, rope, attention, merge, o, gate_up, activation, down, head, sample, count };
constexpr int kParts = static_cast<int>(Part::count);
struct Counters {
  double seconds[kParts] = {};
  double wait = 0;
  int64_t steps = 0;
  bool timed = false;
};

class Model {
 public:
  Model(const Kernels& kernels, const Spec& spec, std::shared_ptr<Team> team);
  // The parts of a finished model, run by another team of the same ranks: nothing that a step writes is shared, so that a step of the
  // other one that never ends does no harm. What that one borrowed must live on.
  Model(const Model& other, std::shared_ptr<Team> team);
  ~Model();

  // Setters throw std::invalid_argument naming what is wrong. Packed weights are copied, each rank's by its own threads; embedding rows
  // are borrowed.
  void set_embedding(EmbeddingFormat format, const uint8_t* rows, int64_t row_bytes);
  void set_rope(int table, const float* cos, const float* sin, int rope_dim);
  void set_positions(const float* rows);  // encoder: [max_positions][hidden], added to the embedding
  void set_norm(const std::string& name, const float* weight, int count);
  void set_bias(const std::string& name, const float* bias, int count);
  void set_linear(const std::string& name, Format format, int n, int k, const uint8_t* packed, size_t packed_bytes,
                  const float* scale, const int32_t* wide, int wide_count);
  void finish();

  // Checks and copies the batch, and starts the step on the team's workers; settle() joins them and returns when it is done.
  // `kv` must live until then. What reads the step's results settles first.
  void begin(KvCache& kv, const Batch& batch);
  void settle();
  // A timed step books its parts, and is done when begin() returns: so the parts add up.
  void set_timed(bool timed);

  const Spec& spec() const { return spec_; }
  const Kernels& kernels() const { return kernels_; }
  Team& team() const { return *team_; }
  const std::shared_ptr<Team>& shared_team() const { return team_; }
  LogitsView logits() const;
  const float* hidden() const;  // [hidden_rows()][hidden], normed: of the logit rows
  int hidden_rows() const;
  // Held by begin, settle and while reading logits.
  std::mutex& mutex() { return mutex_; }
  Counters& counters() { return counters_; }

 private:
  struct Parts;
  struct Step;
  std::vector<Range> outputs(const std::string& name, int n, int rank) const;

  const Kernels& kernels_;
  const Spec spec_;
  std::shared_ptr<Team> team_;
  std::mutex mutex_;
  Counters counters_;
  std::shared_ptr<Parts> parts_;  // once finished only read
  std::unique_ptr<Step> step_;
};

KvLayout kv_layout(const Spec& spec, KvFormat format);
// Bytes of a block in the memory of all ranks, whose threads `ranks` are.
int64_t kv_block_bytes(const KvLayout& layout, int heads, const std::vector<int>& ranks);

// A block has a part with each rank, of the KV heads that the rank has, in memory that its threads touch first.
class KvCache {
 public:
  KvCache(const Spec& spec, KvFormat format, int num_blocks, std::shared_ptr<Team> team);
  KvCache(const KvCache&) = delete;
  int num_blocks() const { return num_blocks_; }
  const KvLayout& layout() const { return layout_; }  // of the whole model
  const std::vector<int>& ranks() const { return team_->ranks(); }
  KvView view(int rank) const { return {parts_[rank].memory.data(), parts_[rank].layout, 0}; }
  int64_t block_bytes() const;
  void copy_blocks(const int32_t* src, const int32_t* dst, int count);

 private:
  struct PartOfRank {
    KvLayout layout;
    Memory memory;
  };
  const KvLayout layout_;
  const int num_blocks_;
  const std::shared_ptr<Team> team_;
  std::vector<PartOfRank> parts_;
};

}  // namespace tailrace
