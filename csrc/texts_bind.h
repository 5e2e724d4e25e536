// The strings of a GGUF array, each behind its length: a vocabulary and its merges are a hundred thousand, which Python
// alone takes ten times as long to read.
#pragma once
#include <nanobind/nanobind.h>

#include <cstring>


namespace tailrace::bind {

namespace nb = nanobind;

// A view of what holds bytes, for as long as it lives.
class ByteView {
 public:
  explicit ByteView(nb::handle source) {
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~ByteView() { PyBuffer_Release(&view_); }
  ByteView(const ByteView&) = delete;
  ByteView& operator=(const ByteView&) = delete;

  const char* data() const { return static_cast<const char*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

// (texts, position behind them). Fewer than `count` when one of them reaches beyond the end. What is not UTF-8 becomes U+FFFD.
inline nb::tuple read_texts(nb::handle source, size_t position, size_t count) {
  const ByteView bytes(source);
  nb::list texts;
  for (size_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    if (position > bytes.size() || bytes.size() - position < sizeof length) break;
    std::memcpy(&length, bytes.data() + position, sizeof length);
    const size_t start = position + sizeof length;
    if (length > bytes.size() - start) break;
    PyObject* text = PyUnicode_DecodeUTF8(bytes.data() + start, static_cast<Py_ssize_t>(length), "replace");
    if (text == nullptr) throw nb::python_error();
    texts.append(nb::steal(text));
    position = start + length;
  }
  return nb::make_tuple(texts, position);
}

inline void bind_texts(nb::module_& m) {
  m.def("read_texts", &read_texts, nb::arg("data"), nb::arg("position"), nb::arg("count"));
}

}  // namespace tailrace::bind
