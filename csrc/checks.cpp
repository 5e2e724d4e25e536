#include "checks.h"

#include "lora.h"

namespace tailrace {

namespace {

std::string text(int64_t value) { return std::to_string(value); }

struct Shape {
  int n, k;
};

Shape shape_of(const Spec& spec, const std::string& name) {
  const int attention = spec.heads * spec.head_dim;
  const std::string kind = name.substr(0, name.find('.'));
  if (kind == "qkv") return {attention + 2 * spec.kv_heads * spec.head_dim, spec.hidden};
  if (kind == "o") return {spec.hidden, attention};
  if (kind == "up") return {spec.ffn, spec.hidden};
  if (kind == "gate_up") return {2 * spec.ffn, spec.hidden};
  if (kind == "down") return {spec.hidden, spec.ffn};
  return {spec.vocab, spec.hidden};
}

void check_table(const KvCache& kv, const Batch& batch, int sequence, int tokens) {
  const int blocks = static_cast<int>(ceil_div(tokens, kBlockTokens));
  check(blocks <= batch.table_width, "block_tables: sequence " + text(sequence) + " needs " + text(blocks) + " blocks, the table has " +
                                         text(batch.table_width));
  const int32_t* table = batch.block_tables + int64_t{sequence} * batch.table_width;
  for (int b = 0; b < blocks; ++b) {
    if (table[b] < 0 || table[b] >= kv.num_blocks()) {
      check(false, "block_tables: sequence " + text(sequence) + " names block " + text(table[b]) + ", the cache has " +
                       text(kv.num_blocks()));
    }
  }
}

void check_sequence(const Spec& spec, const KvCache& kv, const Batch& batch, int s) {
  const int rows = batch.row_starts[s + 1] - batch.row_starts[s];
  check(rows > 0 && batch.row_starts[s + 1] <= batch.rows, "row_starts must ascend from 0 to the number of rows");
  const int64_t first = batch.first_positions[s];
  if (first < 0 || first + rows > spec.max_positions) {
    check(false, "first_positions: sequence " + text(s) + " covers positions " + text(first) + " to " + text(first + rows - 1) +
                     ", max_positions is " + text(spec.max_positions));
  }
  if (spec.encoder) check(first == 0, "first_positions must be 0: an encoder computes whole sequences");
  check_table(kv, batch, s, static_cast<int>(first + rows));
}

}  // namespace

void check_spec(const Spec& s) {
  check(s.layers > 0 && s.layers <= 4096, "layers must be between 1 and 4096");
  check(s.hidden > 0 && s.hidden % 64 == 0 && s.hidden <= 1 << 17, "hidden must be a multiple of 64, at most 131072");
  check(s.ffn > 0 && s.ffn % 64 == 0 && s.ffn <= 1 << 20, "ffn must be a multiple of 64, at most 1048576");
  check(s.head_dim > 0 && s.head_dim % 32 == 0 && s.head_dim <= 1024, "head_dim must be a multiple of 32, at most 1024");
  check(s.kv_heads > 0 && s.heads > 0 && s.heads % s.kv_heads == 0, "heads must be a multiple of kv_heads");
  check(s.heads <= 1024 && s.heads / s.kv_heads <= kMaxGroup, "heads must be at most 32 for each KV head");
  check(s.vocab > 0 && s.vocab <= 1 << 24, "vocab must be between 1 and 16777216");
  check(s.max_positions > 0 && s.max_positions <= 1 << 26, "max_positions must be between 1 and 67108864");
  check(s.norm_eps >= 0, "norm_eps must not be negative");
  check(s.embedding_scale > 0 && s.attention_scale >= 0, "embedding_scale must be above 0, attention_scale not below");
  check(s.attention_softcap >= 0, "attention_softcap must not be negative");
  check(s.logit_softcap >= 0, "logit_softcap must not be negative");
  check(static_cast<int>(s.windows.size()) == s.layers, "windows must have a value for each layer");
  check(static_cast<int>(s.ropes.size()) == s.layers, "ropes must have a value for each layer");
  for (int window : s.windows) check(window >= 0, "windows must not be negative");
  for (int table : s.ropes) check(table >= 0 && table < kMaxRopes, "ropes must be between 0 and 7");
}

int bias_size(const Spec& spec, const std::string& name) {
  const std::string kind = name.substr(0, name.find('.'));
  const bool linear = kind == "qkv" || kind == "o" || kind == "up" || kind == "down";
  return linear ? shape_of(spec, name).n : spec.hidden;
}

void check_linear(const Spec& spec, const std::string& name, int n, int k) {
  const Shape shape = shape_of(spec, name);
  if (n != shape.n || k != shape.k) {
    check(false, "n, k of '" + name + "' must be " + text(shape.n) + ", " + text(shape.k) + ", not " + text(n) + ", " + text(k));
  }
}

void check_wide(const int32_t* wide, int count, int k) {
  check(count % 64 == 0 && count <= k, "wide must list a multiple of 64 channels, at most k");
  check(int64_t{k} * 127 * 128 + int64_t{count} * 32512 * 128 < int64_t{1} << 31,
        "wide lists too many channels: sums could leave 32 bits");
  for (int i = 0; i < count; ++i) {
    check(wide[i] >= 0 && wide[i] < k && (i == 0 || wide[i] > wide[i - 1]), "wide must ascend and stay below k");
  }
}

void check_batch(const Spec& spec, const KvCache& kv, const Batch& batch) {
  const KvLayout& layout = kv.layout();
  check(layout.layers == (spec.encoder ? 1 : spec.layers) && layout.kv_heads == spec.kv_heads && layout.head_dim == spec.head_dim,
        "kv was made for a model of another shape");
  check(batch.rows > 0, "token_ids must not be empty");
  check(batch.row_starts[0] == 0 && batch.row_starts[batch.sequences] == batch.rows,
        "row_starts must ascend from 0 to the number of rows");
  for (int s = 0; s < batch.sequences; ++s) check_sequence(spec, kv, batch, s);
  for (int r = 0; r < batch.rows; ++r) {
    if (batch.token_ids[r] < 0 || batch.token_ids[r] >= spec.vocab) {
      check(false, "token_ids holds " + text(batch.token_ids[r]) + ", the vocabulary has " + text(spec.vocab));
    }
  }
  for (int s = 0; batch.adapters && s < batch.sequences; ++s) {
    check(!batch.adapters[s] || batch.adapters[s]->fits(spec), "adapters: one was made for a model of another shape");
  }
  for (int i = 0; i < batch.logits; ++i) {
    const int row = batch.logit_rows[i];
    check(row >= 0 && row < batch.rows && (i == 0 || row > batch.logit_rows[i - 1]), "logit_rows must ascend and name rows of the batch");
  }
  check(batch.hidden_only >= 0 && batch.hidden_only <= batch.logits, "hidden_only must be between 0 and the number of logit_rows");
}

}  // namespace tailrace
