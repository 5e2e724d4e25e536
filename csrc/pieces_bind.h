// Python's way into `Pieces`. Texts come as UTF-8 bytes, so that what has no bytes is refused before.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.h"
#include "pieces.h"

namespace tailrace::bind {

template <class T>
std::vector<T> list_of(const AnyArray& array, const char* name) {
  const int n = axis_size(array, name, 0);
  const T* data = array_data<T>(array, name, {n});
  return std::vector<T>(data, data + n);
}

inline void bind_pieces(nb::module_& m) {
  nb::class_<Pieces>(m, "Pieces")
      .def(
          "__init__",
          [](Pieces* self, nb::bytes texts, AnyArray ends, AnyArray scores, AnyArray roles, AnyArray bytes, int unknown,
             bool space_prefix) {
            new (self) Pieces({std::string(texts.c_str(), texts.size()), list_of<int64_t>(ends, "ends"),
                               list_of<float>(scores, "scores"), list_of<uint8_t>(roles, "roles"),
                               list_of<int32_t>(bytes, "bytes"), unknown, space_prefix});
          },
          nb::arg("texts"), nb::arg("ends"), nb::arg("scores"), nb::arg("roles"), nb::arg("bytes"), nb::arg("unknown"),
          nb::arg("space_prefix"))
      .def(
          "encode",
          [](const Pieces& self, nb::bytes text, bool parse) {
            std::vector<int32_t> ids;
            {
              nb::gil_scoped_release released;
              ids = self.encode(std::string_view(text.c_str(), text.size()), parse);
            }
            NewArray<int32_t> found({ids.size()});
            std::copy(ids.begin(), ids.end(), found.data);
            return found.object;
          },
          nb::arg("text"), nb::arg("parse"));
}

}  // namespace tailrace::bind
