#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "testing_bind.h"

namespace tailrace {
void bind_testing(nanobind::module_&) {}
}
