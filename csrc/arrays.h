// NumPy arrays in and out of the bindings: dtype, shape and contiguity are checked here, with errors naming the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace tailrace {

namespace nb = nanobind;

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  else if constexpr (std::is_same_v<T, int32_t>) return "int32";
  else if constexpr (std::is_same_v<T, int64_t>) return "int64";
  else if constexpr (std::is_same_v<T, int16_t>) return "int16";
  else if constexpr (std::is_same_v<T, int8_t>) return "int8";
  else if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
  else if constexpr (std::is_same_v<T, uint16_t>) return "uint16";
  else if constexpr (std::is_same_v<T, uint32_t>) return "uint32";
  else return "uint64";
}

constexpr int64_t kAnySize = -1;

inline bool is_contiguous(const AnyArray& array) {
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

inline std::string shape_text(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + (size == kAnySize ? "any" : std::to_string(size));
  return text + "]";
}

// The data of an array that must be C-contiguous, of type T and of the given shape.
template <class T>
const T* array_data(const AnyArray& array, const char* name, std::initializer_list<int64_t> shape) {
  bool fits = array.ndim() == shape.size();
  size_t axis = 0;
  for (int64_t size : shape) fits = fits && (size == kAnySize || static_cast<int64_t>(array.shape(axis)) == size), ++axis;
  if (!fits) throw std::invalid_argument(std::string(name) + " must have shape " + shape_text(shape));
  if (array.dtype() != nb::dtype<T>()) throw std::invalid_argument(std::string(name) + " must be " + type_name<T>());
  if (!is_contiguous(array) && array.size() > 0) throw std::invalid_argument(std::string(name) + " must be C-contiguous");
  return static_cast<const T*>(array.data());
}

// Length of axis `axis`; at most 2^31 - 1.
inline int axis_size(const AnyArray& array, const char* name, size_t axis) {
  if (axis >= array.ndim()) throw std::invalid_argument(std::string(name) + " has too few dimensions");
  if (array.shape(axis) > 0x7FFFFFFF) throw std::invalid_argument(std::string(name) + " is too long");
  return static_cast<int>(array.shape(axis));
}

// A fresh NumPy array to fill through `data`.
template <class T>
struct NewArray {
  T* data;
  nb::object object;

  explicit NewArray(std::initializer_list<size_t> shape) {
    size_t count = 1;
    for (size_t size : shape) count *= size;
    data = new T[count ? count : 1]();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    object = nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
  }
};

}  // namespace tailrace
