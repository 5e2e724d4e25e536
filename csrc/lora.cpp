#include "lora.h"

#include <algorithm>
#include <type_traits>

#include "checks.h"

namespace tailrace {

namespace {

struct Projection {
  Place place;
  int n, k, column, column_step;
};

Projection projection_of(const Spec& s, const std::string& kind) {
  const int q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  if (kind == "q") return {Place::qkv, q, s.hidden, 0, 16};
  if (kind == "k") return {Place::qkv, kv, s.hidden, q, 16};
  if (kind == "v") return {Place::qkv, kv, s.hidden, q + kv, 16};
  if (kind == "o") return {Place::o, s.hidden, q, 0, 16};
  if (kind == "gate") return {Place::gate_up, s.ffn, s.hidden, 0, 32};
  if (kind == "up") return {Place::gate_up, s.ffn, s.hidden, 16, 32};
  if (kind == "down") return {Place::down, s.hidden, s.ffn, 0, 16};
  throw std::invalid_argument("name '" + kind + "' is not a projection: q, k, v, o, gate, up or down");
}

int layer_of(const std::string& name, int layers) {
  const std::string digits = name.substr(name.find('.') + 1);
  const bool number = !digits.empty() && digits.size() < 6 && digits.find_first_not_of("0123456789") == std::string::npos;
  check(number && std::stoi(digits) < layers, "name '" + name + "' names a layer the model does not have");
  return std::stoi(digits);
}

// As lora_inl.h draws them.
template <class T>
std::vector<uint8_t> packed_a(const T* a, int rank, int k) {
  std::vector<uint8_t> bytes(sizeof(T) * round_up(rank, 8) * k);
  T* out = reinterpret_cast<T*>(bytes.data());
  for (int i = 0; i < rank; ++i) {
    for (int c = 0; c < k; ++c) out[(int64_t{i} / 8 * k + c) * 8 + i % 8] = a[int64_t{i} * k + c];
  }
  return bytes;
}

template <class T>
std::vector<uint8_t> packed_b(const T* b, int n, int rank) {
  std::vector<uint8_t> bytes(sizeof(T) * n * rank);
  T* out = reinterpret_cast<T*>(bytes.data());
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < rank; ++i) out[(int64_t{j} / 32 * rank + i) * 32 + j % 32] = b[int64_t{j} * rank + i];
  }
  return bytes;
}

}  // namespace

template <class T>
void Adapter::set(const std::string& name, const T* a, const T* b, const std::array<int64_t, 4>& shapes, float scale) {
  const int layer = layer_of(name, spec_.layers);
  const Projection p = projection_of(spec_, name.substr(0, name.find('.')));
  const auto [rank, k, n, inner] = shapes;
  check(rank >= 1 && rank <= kMaxRank, "a of '" + name + "' must have 1 to 64 rows");
  check(k == p.k, "a of '" + name + "' must have " + std::to_string(p.k) + " columns");
  check(n == p.n && inner == rank, "b of '" + name + "' must have shape [" + std::to_string(p.n) + ", " + std::to_string(rank) + "]");
  std::vector<LowRank>& here = layers_[layer][static_cast<int>(p.place)];
  for (const LowRank& other : here) check(other.column != p.column, "'" + name + "' is set already");
  store_.push_back(packed_a(a, static_cast<int>(rank), p.k));
  const void* stored_a = store_.back().data();
  store_.push_back(packed_b(b, p.n, static_cast<int>(rank)));
  here.push_back({static_cast<int>(rank), p.n, p.k, p.column, p.column_step, !std::is_same_v<T, float>, scale, stored_a,
                  store_.back().data()});
}

template void Adapter::set(const std::string&, const float*, const float*, const std::array<int64_t, 4>&, float);
template void Adapter::set(const std::string&, const bf16*, const bf16*, const std::array<int64_t, 4>&, float);

bool Adapter::fits(const Spec& s) const {
  return s.layers == spec_.layers && s.hidden == spec_.hidden && s.heads == spec_.heads && s.kv_heads == spec_.kv_heads &&
         s.head_dim == spec_.head_dim && s.ffn == spec_.ffn;
}

int64_t Adapter::bytes() const {
  int64_t total = 0;
  for (const std::vector<uint8_t>& part : store_) total += static_cast<int64_t>(part.size());
  return total;
}

LowRank of_rank(const LowRank& w, const Spec& s, const HeadShare& share) {
  const bool query = w.column == 0, value = w.column == (s.heads + s.kv_heads) * s.head_dim;
  const Range& heads = query ? share.heads : share.kv_heads;
  LowRank own = w;
  own.n = heads.count * s.head_dim;
  own.column = query ? 0 : (share.heads.count + (value ? share.kv_heads.count : 0)) * s.head_dim;
  own.b = static_cast<const uint8_t*>(w.b) + int64_t{heads.first} * s.head_dim * w.rank * (w.bf16 ? sizeof(bf16) : sizeof(float));
  return own;
}

void StepAdapters::assign(const Batch& batch) {
  held.clear(), rows.clear(), logits.clear();
  if (!batch.adapters) return;
  held.assign(batch.adapters, batch.adapters + batch.sequences);
  if (std::none_of(held.begin(), held.end(), [](const auto& one) { return one != nullptr; })) {
    held.clear();
    return;
  }
  rows.resize(batch.rows);
  for (int s = 0; s < batch.sequences; ++s) {
    std::fill(rows.begin() + batch.row_starts[s], rows.begin() + batch.row_starts[s + 1], held[s].get());
  }
  for (int i = 0; i < batch.logits; ++i) logits.push_back(rows[batch.logit_rows[i]]);
}

}  // namespace tailrace
