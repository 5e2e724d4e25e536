// Python's way into the sampler: checks every argument of Model.sample (ValueError naming it), then samples without the GIL.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "arrays.h"
#include "executor.h"
#include "sampler.h"

namespace tailrace::bind {

[[noreturn]] inline void refuse(const std::string& name, const std::string& why) {
  throw std::invalid_argument(name + ": " + why);
}

template <class T>
void check_range(const T* v, size_t count, T low, T high, const char* name, const char* rule) {
  for (size_t i = 0; i < count; i++)
    if (!(v[i] >= low && v[i] <= high)) refuse(name, std::string(rule) + "; row " + std::to_string(i) + " does not fit");
}

// starts of a CSR list with `total` entries.
inline void check_starts(const int32_t* starts, int count, size_t total, const char* name) {
  if (starts[0] != 0 || static_cast<size_t>(starts[count]) != total)
    refuse(name, "must begin at 0 and end at the number of ids");
  for (int i = 0; i < count; i++)
    if (starts[i] > starts[i + 1]) refuse(name, "must ascend");
}

// The arguments as Python gives them, in the order of _native.pyi.
struct PythonSampleArgs {
  AnyArray rows, temperature, top_k, top_p, min_p, typical_p, key, position, logprobs, penalties, history_starts,
      history_ids, history_counts, bias_starts, bias_ids, bias_values;
  std::optional<AnyArray> mask, mask_rows;
};

inline SampleArgs view_parameters(const PythonSampleArgs& p, int vocab) {
  const int n = axis_size(p.rows, "rows", 0), ids = axis_size(p.history_ids, "history_ids", 0);
  const int biases = axis_size(p.bias_ids, "bias_ids", 0);
  SampleArgs a{};
  a.count = n;
  a.rows = array_data<int32_t>(p.rows, "rows", {n});
  a.temperature = array_data<float>(p.temperature, "temperature", {n});
  a.top_k = array_data<int32_t>(p.top_k, "top_k", {n});
  a.top_p = array_data<float>(p.top_p, "top_p", {n});
  a.min_p = array_data<float>(p.min_p, "min_p", {n});
  a.typical_p = array_data<float>(p.typical_p, "typical_p", {n});
  a.key = array_data<uint64_t>(p.key, "key", {n});
  a.position = array_data<int32_t>(p.position, "position", {n});
  a.logprobs = array_data<int32_t>(p.logprobs, "logprobs", {n});
  a.penalties = array_data<float>(p.penalties, "penalties", {n, 3});
  a.history_starts = array_data<int32_t>(p.history_starts, "history_starts", {int64_t{n} + 1});
  a.history_ids = array_data<int32_t>(p.history_ids, "history_ids", {ids});
  a.history_counts = array_data<int32_t>(p.history_counts, "history_counts", {ids});
  a.bias_starts = array_data<int32_t>(p.bias_starts, "bias_starts", {int64_t{n} + 1});
  a.bias_ids = array_data<int32_t>(p.bias_ids, "bias_ids", {biases});
  a.bias_values = array_data<float>(p.bias_values, "bias_values", {biases});
  if (p.mask_rows && !p.mask) refuse("mask_rows", "needs a mask");
  const int masks = p.mask_rows ? axis_size(*p.mask, "mask", 0) : n;
  if (p.mask) a.mask = array_data<uint32_t>(*p.mask, "mask", {masks, ceil_div(vocab, 32)});
  if (p.mask_rows) {
    a.mask_rows = array_data<int32_t>(*p.mask_rows, "mask_rows", {n});
    check_range(a.mask_rows, static_cast<size_t>(n), -1, masks - 1, "mask_rows", "must be -1 or a row of mask");
  }
  return a;
}

inline void check_penalties(const float* penalties, int count) {
  for (int i = 0; i < count; i++) {
    const float* p = penalties + i * 3;
    for (int j = 0; j < 3; j++) check_range(p + j, 1, -FLT_MAX, FLT_MAX, "penalties", "must be finite");
    if (!(p[2] > 0)) refuse("penalties", "the repetition penalty must be above 0");
  }
}

inline void check_values(const SampleArgs& a, int logit_rows, int vocab, size_t ids, size_t biases) {
  const size_t n = static_cast<size_t>(a.count);
  check_range(a.rows, n, 0, logit_rows - 1, "rows", "must be among the last forward's logit rows");
  check_range(a.temperature, n, 0.0f, FLT_MAX, "temperature", "must be finite and at least 0");
  check_range(a.top_k, n, 0, INT32_MAX, "top_k", "must be at least 0");
  check_range(a.top_p, n, FLT_TRUE_MIN, 1.0f, "top_p", "must be above 0 and at most 1");
  check_range(a.min_p, n, 0.0f, 1.0f, "min_p", "must be from 0 to 1");
  check_range(a.typical_p, n, FLT_TRUE_MIN, 1.0f, "typical_p", "must be above 0 and at most 1");
  check_range(a.position, n, 0, INT32_MAX, "position", "must be at least 0");
  check_range(a.logprobs, n, -2 - vocab, vocab, "logprobs", "must be from -2 - the vocabulary size to that size");
  check_penalties(a.penalties, a.count);
  check_starts(a.history_starts, a.count, ids, "history_starts");
  check_range(a.history_ids, ids, 0, vocab - 1, "history_ids", "must be token ids");
  check_range(a.history_counts, ids, 0, INT32_MAX, "history_counts", "must be at least 0");
  check_starts(a.bias_starts, a.count, biases, "bias_starts");
  check_range(a.bias_ids, biases, 0, vocab - 1, "bias_ids", "must be token ids");
  check_range(a.bias_values, biases, -HUGE_VALF, FLT_MAX, "bias_values", "must be numbers below +infinity");
}

inline nb::tuple sample(Team& team, const LogitsView& logits, const PythonSampleArgs& p) {
  const SampleArgs args = view_parameters(p, logits.vocab);
  check_values(args, logits.rows, logits.vocab, p.history_ids.size(), p.bias_ids.size());
  const size_t n = static_cast<size_t>(args.count);
  int width = 0;
  for (size_t i = 0; i < n; i++) width = std::max(width, alternatives(args.logprobs[i]));
  const size_t columns = static_cast<size_t>(width);
  NewArray<int32_t> token({n}), top_ids({n, columns});
  NewArray<float> logprob({n}), top_logprobs({n, columns});
  SampleResult result{token.data, logprob.data, top_ids.data, top_logprobs.data, width};
  {
    nb::gil_scoped_release release;
    sample_rows(team, logits, args, result);
  }
  return nb::make_tuple(token.object, logprob.object, top_ids.object, top_logprobs.object);
}

// Defines `name` on a class or module as fn(First..., PythonSampleArgs), with the argument names of _native.pyi.
template <class... First, class Scope, class Function, class... Names>
void define_sample(Scope& scope, const char* name, Function fn, const Names&... names) {
  using A = const AnyArray&;
  auto call = [fn](First... on, A rows, A temperature, A top_k, A top_p, A min_p, A typical_p, A key, A position,
                   A logprobs, A penalties, A history_starts, A history_ids, A history_counts, A bias_starts, A bias_ids,
                   A bias_values, const std::optional<AnyArray>& mask, const std::optional<AnyArray>& mask_rows) {
    return fn(on..., PythonSampleArgs{rows, temperature, top_k, top_p, min_p, typical_p, key, position, logprobs,
                                      penalties, history_starts, history_ids, history_counts, bias_starts, bias_ids,
                                      bias_values, mask, mask_rows});
  };
  using nb::arg;
  scope.def(name, call, names..., arg("rows"), arg("temperature"), arg("top_k"), arg("top_p"), arg("min_p"),
            arg("typical_p"), arg("key"), arg("position"), arg("logprobs"), arg("penalties"), arg("history_starts"), arg("history_ids"),
            arg("history_counts"), arg("bias_starts"), arg("bias_ids"), arg("bias_values"), arg("mask") = nb::none(),
            arg("mask_rows") = nb::none());
}

inline nb::tuple sample_model(Model& model, const PythonSampleArgs& args) {
  std::unique_lock<std::mutex> lock(model.mutex(), std::defer_lock);
  {
    nb::gil_scoped_release release;  // another thread may hold the mutex in a step
    model.settle();
    lock.lock();
  }
  const auto start = std::chrono::steady_clock::now();
  nb::tuple result = sample(model.team(), model.logits(), args);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  model.counters().seconds[static_cast<int>(Part::sample)] += seconds.count();
  return result;
}

inline nb::tuple sample_logits(Team& team, const AnyArray& logits, const PythonSampleArgs& args) {
  const float* data = array_data<float>(logits, "logits", {kAnySize, kAnySize});
  const int rows = axis_size(logits, "logits", 0), vocab = axis_size(logits, "logits", 1);
  if (vocab == 0) refuse("logits", "must have columns");
  return sample(team, LogitsView{data, rows, vocab, vocab}, args);
}

// testing.sample_logits(team, logits [R, V] float32, the arguments of Model.sample): the sampler without a model.
inline void bind_sample_logits(nb::module_& testing) {
  define_sample<Team&, const AnyArray&>(testing, "sample_logits", sample_logits, nb::arg("team"), nb::arg("logits"));
}

inline void bind_sampler(nb::class_<Model>& model, nb::module_& testing) {
  define_sample<Model&>(model, "sample", sample_model);
  bind_sample_logits(testing);
}

}  // namespace tailrace::bind
