// The named parts of a model.
#include <algorithm>

#include "checks.h"
#include "step.h"

namespace tailrace {

void OwnedLinear::assign(const Linear& whole, const std::vector<Range>& outputs, const uint8_t* packed) {
  view = whole;
  view.n = 0;
  for (const Range& own : outputs) view.n += own.count;
  view.n_pad = static_cast<int>(round_up(view.n, kTileColumns));
  view.packed = packed;
  first = outputs.size() == 1 ? outputs.front().first : 0;
  scale.clear();
  for (const Range& own : outputs) {
    if (whole.scale) scale.insert(scale.end(), whole.scale + own.first, whole.scale + own.end());
  }
  scale.resize(whole.scale ? view.n_pad : 0);
  wide.assign(whole.wide, whole.wide + whole.wide_count);
  mask.assign(whole.k, 0);
  for (int32_t channel : wide) mask[channel] = 0xFFFFFFFFu;
  view.scale = whole.scale ? scale.data() : nullptr, view.wide = wide.data(), view.wide_mask = mask.data();
}

uint8_t* WeightStore::room(size_t count) {
  if (chunks_.empty() || used_ + count > chunks_.back().bytes()) {
    chunks_.emplace_back(std::max(count, kChunk));
    used_ = 0;
  }
  uint8_t* room = chunks_.back().data() + used_;
  used_ += round_up(count, kCacheLine);
  return room;
}

int Model::Parts::layer_index(const std::string& name) const {
  const std::string digits = name.substr(name.find('.') + 1);
  const bool number = !digits.empty() && digits.size() < 6 && digits.find_first_not_of("0123456789") == std::string::npos;
  check(number && std::stoul(digits) < layers.size(), "name '" + name + "' names a layer the model does not have");
  return static_cast<int>(std::stoul(digits));
}

Layer& Model::Parts::layer_of(const std::string& name) { return layers[layer_index(name)]; }

std::vector<float>& Model::Parts::norm(const std::string& name) {
  if (name == "final") return final_norm;
  if (name == "embed") return embed_norm;
  if (name.rfind("attn.", 0) == 0) return layer_of(name).attn_norm;
  if (name.rfind("ffn.", 0) == 0) return layer_of(name).ffn_norm;
  if (name.rfind("attn_out.", 0) == 0) return layer_of(name).attn_out_norm;
  if (name.rfind("ffn_out.", 0) == 0) return layer_of(name).ffn_out_norm;
  if (name.rfind("q.", 0) == 0) return layer_of(name).q_norm;
  if (name.rfind("k.", 0) == 0) return layer_of(name).k_norm;
  throw std::invalid_argument("name '" + name + "' is not a norm: attn.N, ffn.N, attn_out.N, ffn_out.N, q.N, k.N or final");
}

bool Model::Parts::is_head_norm(const std::string& name) { return name.rfind("q.", 0) == 0 || name.rfind("k.", 0) == 0; }

std::vector<std::vector<float>*> Model::Parts::biases(const std::string& name) {
  if (name == "embed") return {&embed_bias};
  if (name.rfind("qkv.", 0) == 0) {
    std::vector<std::vector<float>*> of_ranks;
    for (Share& share : shares) of_ranks.push_back(&share.layers[layer_index(name)].qkv_bias);
    return of_ranks;
  }
  if (name.rfind("o.", 0) == 0) return {&layer_of(name).o_bias};
  if (name.rfind("up.", 0) == 0) return {&layer_of(name).up_bias};
  if (name.rfind("down.", 0) == 0) return {&layer_of(name).down_bias};
  if (name.rfind("attn_out.", 0) == 0) return {&layer_of(name).attn_out_bias};
  if (name.rfind("ffn_out.", 0) == 0) return {&layer_of(name).ffn_out_bias};
  throw std::invalid_argument("name '" + name + "' takes no bias: qkv.N, and of an encoder o.N, up.N, down.N, attn_out.N, ffn_out.N, embed");
}

OwnedLinear& Model::Parts::linear(int rank, const std::string& name) {
  Share& share = shares[rank];
  const auto layer = [&]() -> LayerShare& { return share.layers[layer_index(name)]; };
  if (name == "head") return share.head;
  if (name.rfind("qkv.", 0) == 0) return layer().qkv;
  if (name.rfind("o.", 0) == 0) return layer().o;
  if (name.rfind("gate_up.", 0) == 0) return layer().gate_up;
  if (name.rfind("up.", 0) == 0) return layer().gate_up;
  if (name.rfind("down.", 0) == 0) return layer().down;
  throw std::invalid_argument("name '" + name + "' is not a linear layer: qkv.N, o.N, gate_up.N (an encoder's: up.N), down.N or head");
}

std::string Model::Parts::missing_of_encoder() const {
  std::string names;
  auto need = [&names](bool present, const std::string& name) {
    if (!present) names += (names.empty() ? "" : ", ") + name;
  };
  need(embedding.rows != nullptr, "embedding");
  need(!positions.empty(), "positions");
  need(!embed_norm.empty() && !embed_bias.empty(), "embed");
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    const LayerShare& own = shares.front().layers[i];
    const std::string suffix = "." + std::to_string(i);
    need(own.qkv.set() && !own.qkv_bias.empty(), "qkv" + suffix);
    need(own.o.set() && !layer.o_bias.empty(), "o" + suffix);
    need(!layer.attn_out_norm.empty() && !layer.attn_out_bias.empty(), "attn_out" + suffix);
    need(own.gate_up.set() && !layer.up_bias.empty(), "up" + suffix);
    need(own.down.set() && !layer.down_bias.empty(), "down" + suffix);
    need(!layer.ffn_out_norm.empty() && !layer.ffn_out_bias.empty(), "ffn_out" + suffix);
  }
  return names;
}

std::string Model::Parts::missing(const Spec& spec) const {
  if (spec.encoder) return missing_of_encoder();
  std::string names;
  auto need = [&names](bool present, const std::string& name) {
    if (!present) names += (names.empty() ? "" : ", ") + name;
  };
  need(embedding.rows != nullptr, "embedding");
  for (int table = 0; table < kMaxRopes; ++table) {
    const bool used = std::find(spec.ropes.begin(), spec.ropes.end(), table) != spec.ropes.end();
    const bool set = table < static_cast<int>(ropes.size()) && ropes[table].dim > 0;
    need(!used || set, table == 0 ? "rope" : "rope table " + std::to_string(table));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string suffix = "." + std::to_string(i);
    need(!layers[i].attn_norm.empty(), "attn" + suffix);
    need(!layers[i].ffn_norm.empty(), "ffn" + suffix);
    const LayerShare& linears = shares.front().layers[i];
    need(linears.qkv.set(), "qkv" + suffix);
    need(linears.o.set(), "o" + suffix);
    need(linears.gate_up.set(), "gate_up" + suffix);
    need(linears.down.set(), "down" + suffix);
  }
  need(!final_norm.empty(), "final");
  need(shares.front().head.set(), "head");
  return names;
}

}  // namespace tailrace
