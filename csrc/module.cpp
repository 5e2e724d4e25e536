// Python bindings of the executor. Every argument is checked before native code sees it: a bad call raises, it never crashes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "arrays.h"
#include "checks.h"
#include "cpu.h"
#include "executor.h"
#include "lora.h"
#include "pieces_bind.h"
#include "testing_bind.h"
#include "texts_bind.h"

#if __has_include("sampler_bind.h")
#include "sampler_bind.h"
#define TAILRACE_HAVE_SAMPLER 1
#endif

namespace tailrace {

namespace {

using Wide = std::optional<AnyArray>;
using Adapters = std::optional<std::vector<std::shared_ptr<const Adapter>>>;  // by sequence, null for one without

Format parse_format(const std::string& fmt) {
  if (fmt == "int8") return Format::int8;
  if (fmt == "nib4") return Format::nib4;
  if (fmt == "bf16") return Format::bf16;
  throw std::invalid_argument("fmt must be int8, nib4 or bf16, not '" + fmt + "'");
}

template <class T>
T spec_value(const nb::dict& spec, const char* key) {
  if (!spec.contains(key)) throw std::invalid_argument(std::string("spec has no ") + key);
  T value{};
  if (!nb::try_cast(nb::object(spec[key]), value)) throw std::invalid_argument(std::string("spec: ") + key + " is of the wrong kind");
  return value;
}

template <class T>
T spec_value(const nb::dict& spec, const char* key, T otherwise) {
  return spec.contains(key) ? spec_value<T>(spec, key) : otherwise;
}

Activation parse_activation(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  throw std::invalid_argument("spec: activation must be silu or gelu, not '" + name + "'");
}

Spec parse_spec(const nb::dict& d) {
  Spec s;
  s.layers = spec_value<int>(d, "layers");
  s.hidden = spec_value<int>(d, "hidden");
  s.heads = spec_value<int>(d, "heads");
  s.kv_heads = spec_value<int>(d, "kv_heads");
  s.head_dim = spec_value<int>(d, "head_dim");
  s.ffn = spec_value<int>(d, "ffn");
  s.vocab = spec_value<int>(d, "vocab");
  s.max_positions = spec_value<int>(d, "max_positions");
  s.norm_eps = spec_value<float>(d, "norm_eps");
  s.activation = parse_activation(spec_value<std::string>(d, "activation", "silu"));
  s.embedding_scale = spec_value<float>(d, "embedding_scale", 1);
  s.attention_scale = spec_value<double>(d, "attention_scale", 0);
  s.attention_softcap = spec_value<float>(d, "attention_softcap", 0);
  s.logit_softcap = spec_value<float>(d, "logit_softcap", 0);
  s.encoder = spec_value<bool>(d, "encoder", false);
  const size_t layers = s.layers > 0 && s.layers <= 4096 ? s.layers : 0;
  s.windows = spec_value<std::vector<int>>(d, "windows", std::vector<int>(layers, 0));
  s.ropes = spec_value<std::vector<int>>(d, "ropes", std::vector<int>(layers, 0));
  check_spec(s);
  return s;
}

std::vector<std::string> names_of(const std::vector<const Kernels*>& tables) {
  std::vector<std::string> names;
  for (const Kernels* table : tables) names.push_back(table->name);
  return names;
}

nb::dict features_dict() {
  nb::dict d;
  for (const auto& [name, present] : cpu_features()) d[name.c_str()] = present;
  return d;
}

std::string preferred_format(const std::string& variant, const std::string& source) {
  check(source == "affine4" || source == "other", "source must be affine4 or other");
  return find_variant(variant).preferred(source == "affine4") == Format::nib4 ? "nib4" : "int8";
}

// ---- packing ----

void check_input_width(int k) { check(k > 0 && k % 32 == 0, "w: the number of inputs must be a positive multiple of 32"); }

template <class Pack>
nb::object pack(const Kernels& kernels, Format format, int n, int k, int wide_count, Pack&& fill) {
  check_input_width(k);
  check(n > 0, "w must have rows");
  NewArray<uint8_t> out({kernels.packed_bytes(format, n, k, wide_count)});
  {
    nb::gil_scoped_release release;
    fill(out.data);
  }
  return out.object;
}

const int32_t* wide_channels(const AnyArray& wide, int k) {
  const int32_t* data = array_data<int32_t>(wide, "wide", {kAnySize});
  check_wide(data, axis_size(wide, "wide", 0), k);
  return data;
}

nb::object pack_int8(const std::string& variant, const AnyArray& w, const AnyArray& wide) {
  const Kernels& kernels = find_variant(variant);
  const int8_t* data = array_data<int8_t>(w, "w", {kAnySize, kAnySize});
  const int n = axis_size(w, "w", 0), k = axis_size(w, "w", 1), count = axis_size(wide, "wide", 0);
  const int32_t* channels = wide_channels(wide, k);
  return pack(kernels, Format::int8, n, k, count, [&](uint8_t* out) { kernels.pack_int8(data, n, k, channels, count, out); });
}

nb::object pack_nib4(const std::string& variant, const AnyArray& q, const AnyArray& a, const AnyArray& b, const AnyArray& wide) {
  const Kernels& kernels = find_variant(variant);
  const uint8_t* data = array_data<uint8_t>(q, "q", {kAnySize, kAnySize});
  const int n = axis_size(q, "q", 0), k = axis_size(q, "q", 1), count = axis_size(wide, "wide", 0);
  check_input_width(k);
  const int16_t* slope = array_data<int16_t>(a, "a", {n, k / kNibbleGroup});
  const int16_t* offset = array_data<int16_t>(b, "b", {n, k / kNibbleGroup});
  const int32_t* channels = wide_channels(wide, k);
  return pack(kernels, Format::nib4, n, k, count,
              [&](uint8_t* out) { kernels.pack_nib4(data, slope, offset, n, k, channels, count, out); });
}

nb::object pack_bf16(const std::string& variant, const AnyArray& w) {
  const Kernels& kernels = find_variant(variant);
  const bf16* data = array_data<bf16>(w, "w", {kAnySize, kAnySize});
  const int n = axis_size(w, "w", 0), k = axis_size(w, "w", 1);
  return pack(kernels, Format::bf16, n, k, 0, [&](uint8_t* out) { kernels.pack_bf16(data, n, k, out); });
}

// ---- model ----

Model* make_model(const std::string& variant, const nb::dict& spec, std::shared_ptr<Team> team) {
  return new Model(find_variant(variant), parse_spec(spec), std::move(team));
}

Model* make_model_again(const Model& other, std::shared_ptr<Team> team) { return new Model(other, std::move(team)); }

void set_embedding(Model& model, const AnyArray& rows, const std::string& fmt) {
  const int64_t vocab = model.spec().vocab, hidden = model.spec().hidden;
  auto set = [&](EmbeddingFormat format, const void* data, int64_t row_bytes) {
    model.set_embedding(format, static_cast<const uint8_t*>(data), row_bytes);
  };
  if (fmt == "f32") return set(EmbeddingFormat::f32, array_data<float>(rows, "rows", {vocab, hidden}), hidden * 4);
  if (fmt == "f16") return set(EmbeddingFormat::f16, array_data<uint16_t>(rows, "rows", {vocab, hidden}), hidden * 2);
  if (fmt == "bf16") return set(EmbeddingFormat::bf16, array_data<uint16_t>(rows, "rows", {vocab, hidden}), hidden * 2);
  const int64_t bytes = hidden / 32 * 34;
  if (fmt == "q8_0") return set(EmbeddingFormat::q8_0, array_data<uint8_t>(rows, "rows", {vocab, bytes}), bytes);
  throw std::invalid_argument("fmt must be f32, f16, bf16 or q8_0, not '" + fmt + "'");
}

void set_rope(Model& model, const AnyArray& cos, const AnyArray& sin, int table) {
  const int64_t positions = model.spec().max_positions;
  const float* cosines = array_data<float>(cos, "cos", {positions, kAnySize});
  const int half = axis_size(cos, "cos", 1);
  model.set_rope(table, cosines, array_data<float>(sin, "sin", {positions, half}), 2 * half);
}

void set_positions(Model& model, const AnyArray& rows) {
  model.set_positions(array_data<float>(rows, "rows", {model.spec().max_positions, model.spec().hidden}));
}

void set_norm(Model& model, const std::string& name, const AnyArray& weight) {
  model.set_norm(name, array_data<float>(weight, "weight", {kAnySize}), axis_size(weight, "weight", 0));
}

void set_bias(Model& model, const std::string& name, const AnyArray& bias) {
  model.set_bias(name, array_data<float>(bias, "bias", {kAnySize}), axis_size(bias, "bias", 0));
}

void set_linear(Model& model, const std::string& name, const std::string& fmt, int n, int k, const AnyArray& packed,
                const std::optional<AnyArray>& scale, const Wide& wide) {
  const uint8_t* bytes = array_data<uint8_t>(packed, "packed", {kAnySize});
  const float* scales = scale ? array_data<float>(*scale, "scale", {n}) : nullptr;
  const int32_t* channels = wide ? array_data<int32_t>(*wide, "wide", {kAnySize}) : nullptr;
  const Format format = parse_format(fmt);
  const int wide_count = wide ? axis_size(*wide, "wide", 0) : 0;
  const size_t count = packed.shape(0);
  nb::gil_scoped_release release;  // copying weights reads them from disk
  model.set_linear(name, format, n, k, bytes, count, scales, channels, wide_count);
}

void begin(Model& model, KvCache& kv, const AnyArray& token_ids, const AnyArray& row_starts, const AnyArray& first_positions,
           const AnyArray& block_tables, const AnyArray& logit_rows, int hidden_only, const Adapters& adapters) {
  Batch batch;
  batch.token_ids = array_data<int32_t>(token_ids, "token_ids", {kAnySize});
  batch.rows = axis_size(token_ids, "token_ids", 0);
  batch.first_positions = array_data<int32_t>(first_positions, "first_positions", {kAnySize});
  batch.sequences = axis_size(first_positions, "first_positions", 0);
  batch.row_starts = array_data<int32_t>(row_starts, "row_starts", {int64_t{batch.sequences} + 1});
  batch.block_tables = array_data<int32_t>(block_tables, "block_tables", {batch.sequences, kAnySize});
  batch.table_width = axis_size(block_tables, "block_tables", 1);
  batch.logit_rows = array_data<int32_t>(logit_rows, "logit_rows", {kAnySize});
  batch.logits = axis_size(logit_rows, "logit_rows", 0);
  batch.hidden_only = hidden_only;
  if (adapters) {
    check(static_cast<int>(adapters->size()) == batch.sequences, "adapters must have an entry for each sequence");
    batch.adapters = adapters->data();
  }
  nb::gil_scoped_release release;
  model.begin(kv, batch);
}

void settle(Model& model) {
  nb::gil_scoped_release release;
  model.settle();
}

void forward(Model& model, KvCache& kv, const AnyArray& token_ids, const AnyArray& row_starts, const AnyArray& first_positions,
             const AnyArray& block_tables, const AnyArray& logit_rows, int hidden_only, const Adapters& adapters) {
  begin(model, kv, token_ids, row_starts, first_positions, block_tables, logit_rows, hidden_only, adapters);
  settle(model);
}

nb::object copy_logits(Model& model) {
  settle(model);
  std::unique_lock<std::mutex> lock(model.mutex(), std::defer_lock);
  {
    nb::gil_scoped_release release;
    lock.lock();
  }
  const LogitsView view = model.logits();
  NewArray<float> out({static_cast<size_t>(view.rows), static_cast<size_t>(view.vocab)});
  for (int r = 0; r < view.rows; ++r) std::memcpy(out.data + int64_t{r} * view.vocab, view.row(r), sizeof(float) * view.vocab);
  return out.object;
}

nb::object copy_hidden(Model& model) {
  settle(model);
  std::unique_lock<std::mutex> lock(model.mutex(), std::defer_lock);
  {
    nb::gil_scoped_release release;
    lock.lock();
  }
  const size_t rows = model.hidden_rows(), hidden = model.spec().hidden;
  NewArray<float> out({rows, hidden});
  if (rows) std::memcpy(out.data, model.hidden(), sizeof(float) * rows * hidden);
  return out.object;
}

void set_timed(Model& model, bool timed) {
  nb::gil_scoped_release release;
  model.set_timed(timed);
}

nb::dict take_counters(Model& model) {
  static const char* names[kParts] = {"embed", "norm", "qkv", "rope", "attention", "merge", "o", "gate_up", "activation", "down", "head",
                                      "sample"};
  Counters taken;
  {
    nb::gil_scoped_release release;
    model.settle();
    std::lock_guard<std::mutex> lock(model.mutex());
    taken.timed = model.counters().timed;
    std::swap(taken, model.counters());
  }
  nb::dict d;
  for (int i = 0; i < kParts; ++i) d[names[i]] = taken.seconds[i];
  d["wait"] = taken.wait;
  d["steps"] = static_cast<double>(taken.steps);
  return d;
}

void copy_blocks(KvCache& kv, const AnyArray& src, const AnyArray& dst) {
  const int count = axis_size(src, "src", 0);
  const int32_t* from = array_data<int32_t>(src, "src", {kAnySize});
  const int32_t* to = array_data<int32_t>(dst, "dst", {count});
  nb::gil_scoped_release release;
  kv.copy_blocks(from, to, count);
}

KvFormat parse_kv(const std::string& kv) {
  if (kv == "bf16") return KvFormat::bf16;
  if (kv == "int8") return KvFormat::int8;
  throw std::invalid_argument("kv must be bf16 or int8, not '" + kv + "'");
}

int64_t bytes_per_block(const nb::dict& spec, const std::string& kv, const std::vector<int>& ranks) {
  const Spec parsed = parse_spec(spec);
  check(!ranks.empty(), "ranks must not be empty");
  for (int threads : ranks) check(threads > 0, "ranks must be numbers of threads");
  return kv_block_bytes(kv_layout(parsed, parse_kv(kv)), parsed.heads, ranks);
}

KvCache* make_cache(Model& model, int num_blocks, const std::string& kv) {
  return new KvCache(model.spec(), parse_kv(kv), num_blocks, model.shared_team());
}

void make_team(Team* team, const std::vector<int>& threads, const std::vector<std::vector<int>>& cpus) {
  check(cpus.empty() || cpus.size() == threads.size(), "cpus must have a list for each rank");
  std::vector<RankPlace> ranks;
  for (size_t rank = 0; rank < threads.size(); ++rank) ranks.push_back({threads[rank], cpus.empty() ? std::vector<int>{} : cpus[rank]});
  new (team) Team(std::move(ranks));
}

void bind_packing(nb::module_& m) {
  m.def("preferred_format", &preferred_format, nb::arg("variant"), nb::arg("source"));
  m.def("pack_int8", &pack_int8, nb::arg("variant"), nb::arg("w"), nb::arg("wide"));
  m.def("pack_nib4", &pack_nib4, nb::arg("variant"), nb::arg("q"), nb::arg("a"), nb::arg("b"), nb::arg("wide"));
  m.def("pack_bf16", &pack_bf16, nb::arg("variant"), nb::arg("w"));
}

nb::class_<Model> bind_model(nb::module_& m) {
  return nb::class_<Model>(m, "Model")
      .def(nb::new_(&make_model), nb::arg("variant"), nb::arg("spec"), nb::arg("team"))
      .def("again", &make_model_again, nb::arg("team"), nb::keep_alive<0, 1>())
      .def("set_embedding", &set_embedding, nb::arg("rows"), nb::arg("fmt"), nb::keep_alive<1, 2>())
      .def("set_rope", &set_rope, nb::arg("cos"), nb::arg("sin"), nb::arg("table") = 0)
      .def("set_positions", &set_positions, nb::arg("rows"))
      .def("set_norm", &set_norm, nb::arg("name"), nb::arg("weight"))
      .def("set_bias", &set_bias, nb::arg("name"), nb::arg("bias"))
      .def("set_linear", &set_linear, nb::arg("name"), nb::arg("fmt"), nb::arg("n"), nb::arg("k"), nb::arg("packed"),
           nb::arg("scale").none(), nb::arg("wide").none())
      .def("finish", &Model::finish)
      .def("forward", &forward, nb::arg("kv"), nb::arg("token_ids"), nb::arg("row_starts"), nb::arg("first_positions"),
           nb::arg("block_tables"), nb::arg("logit_rows"), nb::arg("hidden_only") = 0, nb::arg("adapters").none() = nb::none())
      .def("begin", &begin, nb::arg("kv"), nb::arg("token_ids"), nb::arg("row_starts"), nb::arg("first_positions"),
           nb::arg("block_tables"), nb::arg("logit_rows"), nb::arg("hidden_only") = 0, nb::arg("adapters").none() = nb::none(),
           nb::keep_alive<1, 2>())
      .def("settle", &settle)
      .def_prop_rw("timed", [](Model& model) { return model.counters().timed; }, &set_timed)
      .def("logits", &copy_logits)
      .def("hidden", &copy_hidden)
      .def("counters", &take_counters);
}

template <class T>
void set_addition(Adapter& adapter, const std::string& name, const AnyArray& a, const AnyArray& b, float scale) {
  const T* first = array_data<T>(a, "a", {kAnySize, kAnySize});
  const T* second = array_data<T>(b, "b", {kAnySize, kAnySize});
  const auto size = [](const AnyArray& array, size_t axis) { return static_cast<int64_t>(array.shape(axis)); };
  const std::array<int64_t, 4> shapes{size(a, 0), size(a, 1), size(b, 0), size(b, 1)};
  nb::gil_scoped_release release;
  adapter.set(name, first, second, shapes, scale);
}

void bind_adapter(nb::module_& m) {
  const auto set = [](Adapter& adapter, const std::string& name, const AnyArray& a, const AnyArray& b, float scale) {
    a.dtype() == nb::dtype<uint16_t>() ? set_addition<bf16>(adapter, name, a, b, scale) : set_addition<float>(adapter, name, a, b, scale);
  };
  nb::class_<Adapter>(m, "Adapter")
      .def(nb::new_([](Model& model) { return std::make_shared<Adapter>(model.spec()); }), nb::arg("model"))
      .def("set", set, nb::arg("name"), nb::arg("a"), nb::arg("b"), nb::arg("scale"))
      .def_prop_ro("nbytes", &Adapter::bytes);
}

void bind_cache(nb::module_& m) {
  nb::class_<KvCache>(m, "KvCache")
      .def(nb::new_(&make_cache), nb::arg("model"), nb::arg("num_blocks"), nb::arg("kv") = "bf16")
      .def_prop_ro("num_blocks", &KvCache::num_blocks)
      .def_prop_ro("kv", [](const KvCache& kv) { return kv.layout().int8() ? "int8" : "bf16"; })
      .def_prop_ro("block_bytes", &KvCache::block_bytes)
      .def("copy_blocks", &copy_blocks, nb::arg("src"), nb::arg("dst"))
      .def_static("bytes_per_block", &bytes_per_block, nb::arg("spec"), nb::arg("kv") = "bf16",
                  nb::arg("ranks") = std::vector<int>{1});
}

void bind_team(nb::module_& m) {
  nb::class_<Team>(m, "Team")
      .def(nb::init<int>(), nb::arg("threads"))
      .def("__init__", &make_team, nb::arg("threads"), nb::arg("cpus") = std::vector<std::vector<int>>{})
      .def_prop_ro("threads", &Team::threads)
      .def_prop_ro("ranks", &Team::ranks);
}

}  // namespace

}  // namespace tailrace

NB_MODULE(_native, m) {
  using namespace tailrace;
  nb::set_leak_warnings(false);  // a process that ends in an error still holds its model; users need not read about it
  m.attr("BLOCK_TOKENS") = kBlockTokens;
  m.attr("SEGMENT_TOKENS") = kSegmentTokens;
  m.def("cpu_features", &features_dict);
  m.def("variants", [] { return names_of(runnable_variants()); });
  m.def("test_variants", [] { return names_of(testable_variants()); });
  bind_team(m);
  bind_packing(m);
  bind::bind_pieces(m);
  bind::bind_texts(m);
  bind_adapter(m);
  nb::class_<Model> model = bind_model(m);
  bind_cache(m);
  nb::module_ testing = m.def_submodule("testing", "Single kernels, for tests and benchmarks only.");
  bind_testing(testing);
#if defined(TAILRACE_HAVE_SAMPLER)
  bind::bind_sampler(model, testing);
#endif
}
