// What this CPU can run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace tailrace {

std::vector<std::pair<std::string, bool>> cpu_features();
std::vector<const Kernels*> runnable_variants();  // best first
std::vector<const Kernels*> testable_variants();  // those and the ones that exist only to be tested
const Kernels& find_variant(const std::string& name);  // throws std::invalid_argument

}  // namespace tailrace
