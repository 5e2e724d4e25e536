// Checks of everything that comes from outside. Each throws std::invalid_argument (ValueError in Python) naming the argument.
#pragma once

#include <stdexcept>
#include <string>

#include "executor.h"

namespace tailrace {

inline void check(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}
inline void check(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

void check_spec(const Spec& spec);
void check_linear(const Spec& spec, const std::string& name, int n, int k);
int bias_size(const Spec& spec, const std::string& name);
void check_wide(const int32_t* wide, int count, int k);
void check_batch(const Spec& spec, const KvCache& kv, const Batch& batch);

}  // namespace tailrace
