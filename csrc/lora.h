// Low-rank additions to a model's weights (LoRA: Hu and others, 2021, arXiv:2106.09685), made once and then only read.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "executor.h"

namespace tailrace {

// The linears of a layer that take additions.
enum class Place : int { qkv, o, gate_up, down, count };

class Adapter {
 public:
  explicit Adapter(const Spec& spec) : spec_(spec), layers_(spec.layers) {}

  // What the addition to one projection needs: a [rank][k], b [n][rank], y += scale * b (a x). Throws std::invalid_argument naming
  // what is wrong.
  template <class T>
  void set(const std::string& name, const T* a, const T* b, const std::array<int64_t, 4>& shapes, float scale);

  const std::vector<LowRank>& of(int layer, Place place) const { return layers_[layer][static_cast<int>(place)]; }
  bool fits(const Spec& spec) const;
  int64_t bytes() const;

 private:
  using Layer = std::array<std::vector<LowRank>, static_cast<int>(Place::count)>;
  const Spec spec_;
  std::vector<Layer> layers_;
  std::vector<std::vector<uint8_t>> store_;
};

// What of an addition to q, k or v belongs to a rank, whose qkv has its own heads' columns only.
LowRank of_rank(const LowRank& w, const Spec& spec, const HeadShare& share);

// Which adapter each row of a step has.
struct StepAdapters {
  std::vector<std::shared_ptr<const Adapter>> held;  // by sequence; empty when none has one
  std::vector<const Adapter*> rows, logits;
  bool any() const { return !held.empty(); }
  void assign(const Batch& batch);
};

}  // namespace tailrace
