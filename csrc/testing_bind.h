// Single kernels for tests and benchmarks (`_native.testing`); nothing in the package uses them.
#pragma once

#include <nanobind/nanobind.h>

namespace tailrace {
void bind_testing(nanobind::module_& m);
}
