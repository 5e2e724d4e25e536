// Choosing tokens: from one row of logits and its parameters to one token, and log-probabilities when asked.
//
// A token is argmax over the filtered vocabulary of  logit / temperature + gumbel(key, position, id),  so it is a
// function of the row's logits, its parameters and its key alone: no generator state, no dependence on the batch or
// the thread count (the Gumbel-max trick; Maddison, Tarlow, Minka 2014). The order of a row's steps is fixed:
//
//   bias -> repetition, frequency, presence penalty -> mask -> temperature -> top_k -> top_p -> min_p -> typical_p
//        -> noise
//
// This file refuses to check arguments (sampler_bind.h does) and never fails: a row that has no answer - a NaN or
// +infinity among its logits, or every token forbidden - gets token -1.
#pragma once
#include <cstdint>

namespace tailrace {

class Team;

struct LogitsView;  // executor.h

// Arrays of `count` rows, with the meaning, shapes and units of Model.sample in _native.pyi.
struct SampleArgs {
  int count;
  const int32_t* rows;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* typical_p;
  const uint64_t* key;
  const int32_t* position;
  const int32_t* logprobs;
  const float* penalties;
  const int32_t* history_starts, *history_ids, *history_counts;
  const int32_t* bias_starts, *bias_ids;
  const float* bias_values;
  const uint32_t* mask;  // nullptr: everything allowed
  const int32_t* mask_rows;  // each row's place in mask, -1: everything allowed; nullptr: its own number
};

// Of a row: SampleArgs::logprobs is this number or, for log-probabilities of the edited logits, -2 less this number.
inline int alternatives(int32_t logprobs) { return logprobs < -1 ? -2 - logprobs : logprobs; }

// token, logprob: [count]; top_ids, top_logprobs: [count][top_width]. Cells without a value get -1 and -infinity.
struct SampleResult {
  int32_t* token;
  float* logprob;
  int32_t* top_ids;
  float* top_logprobs;
  int top_width;
};

void sample_rows(Team& team, const LogitsView& logits, const SampleArgs& args, SampleResult& result);

}  // namespace tailrace
