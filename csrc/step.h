// The parts of a model and the step that runs them. Private to the executor.
#pragma once

#include <string>
#include <vector>

#include "executor.h"
#include "lora.h"
#include "plan.h"

namespace tailrace {

// What a rank has of a Linear, with the small arrays it points to.
struct OwnedLinear {
  Linear view;
  int first = 0;  // where its outputs begin among the whole matrix'; 0 for qkv, whose outputs stay with their rank
  std::vector<float> scale;
  std::vector<int32_t> wide;
  std::vector<uint32_t> mask;
  // The given outputs of `whole`, whose scale has n values and whose mask is not needed.
  void assign(const Linear& whole, const std::vector<Range>& outputs, const uint8_t* packed);
  bool set() const { return view.k > 0; }
};

// Copies of packed weights in huge pages: the weight stream is read front to back every step, and with small pages address
// translation costs a quarter of its speed.
class WeightStore {
 public:
  uint8_t* room(size_t count);

 private:
  static constexpr size_t kChunk = size_t{64} << 20;  // touched only as far as used
  std::vector<Memory> chunks_;
  size_t used_ = 0;  // of the last chunk
};

// Empty: the layer has no such part.
struct Layer {
  std::vector<float> attn_norm, ffn_norm;          // before the sublayers
  std::vector<float> attn_out_norm, ffn_out_norm;  // behind them
  std::vector<float> q_norm, k_norm;               // of each head
  std::vector<float> o_bias, up_bias, down_bias, attn_out_bias, ffn_out_bias;  // of an encoder; the last two of its norms
};

struct LayerShare {
  OwnedLinear qkv, o, gate_up, down;
  std::vector<float> qkv_bias;
};

// What a rank has, in memory that its threads touched first.
struct Share {
  HeadShare heads;
  std::vector<LayerShare> layers;
  OwnedLinear head;
  WeightStore store;
};

struct RopeTable {
  int dim = 0;
  std::vector<float> cos, sin;  // [max_positions][dim / 2]
};

struct Model::Parts {
  EmbedTask embedding;
  std::vector<float> final_norm;
  std::vector<float> positions, embed_norm, embed_bias;  // of an encoder
  std::vector<RopeTable> ropes;
  std::vector<Layer> layers;
  std::vector<Share> shares;  // by rank

  std::vector<float>& norm(const std::string& name);  // these throw naming an unknown part
  std::vector<std::vector<float>*> biases(const std::string& name);  // of each rank, or one that all share
  OwnedLinear& linear(int rank, const std::string& name);
  static bool is_head_norm(const std::string& name);
  std::string missing(const Spec& spec) const;        // names of unset parts, separated by ", "

 private:
  std::string missing_of_encoder() const;
  int layer_index(const std::string& name) const;
  Layer& layer_of(const std::string& name);
};

// What only one rank writes and reads: attention over its own heads.
struct RankSpace {
  Memory qkv, q, partial_max, partial_sum, partial_out;
};

// Memory of a step; grows to the largest batch seen. Ranks gather their outputs in the shared parts of it.
struct Workspace {
  Memory residual, kept, rows, steps, attention, delta, activated, logits, hidden;
  Memory normed, inner, gate_up;  // of a step with adapters
  std::vector<RankSpace> own;     // by rank
  std::vector<Memory> scratch;    // by member
};

// A batch with its arrays.
struct OwnedBatch {
  Batch view{};
  std::vector<int32_t> values;
  void assign(const Batch& batch);
};

struct Model::Step {
 public:
  Step(const Kernels& kernels, const Spec& spec, const Parts& parts, Team& team, Counters& counters);
  // The step reads `batch` until it is settled, so it gets its own copy.
  void begin(KvCache& kv, const Batch& batch);
  LogitsView logits() const { return logits_; }
  const float* hidden() const { return space_.hidden.as<float>(); }
  // The step is settled: what it was lent may go.
  void let_go() { adapters_.held.clear(); }
  int hidden_rows() const { return hidden_rows_; }

 private:
  class Member;
  struct Walk {  // what the team runs
    Step& step;
    KvCache* kv;
    void operator()(Team::Member& place);
  };
  void reserve(const Batch& batch, int with_logits);
  void reserve_own(int rank, size_t rows);
  size_t rows_bytes(int m) const;
  int tile_rows(int rank) const;
  size_t scratch_bytes(int rank) const;

  const Kernels& kernels_;
  const Spec& spec_;
  const Parts& parts_;
  Team& team_;
  Counters& counters_;
  Workspace space_;
  OwnedBatch batch_;
  StepAdapters adapters_;
  Walk walk_{*this, nullptr};
  std::vector<HeadShare> shares_;  // by rank
  StepPlan plan_;
  LogitsView logits_;
  int hidden_rows_ = 0;
};

}  // namespace tailrace
