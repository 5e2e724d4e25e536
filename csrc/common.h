// Small things every native file needs: bf16, cache lines, large lazily touched memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tailrace {

using bf16 = uint16_t;

constexpr int kCacheLine = 64;

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Zero-filled anonymous memory that costs nothing until touched; asks for huge pages. Throws std::bad_alloc.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // At least `bytes` afterwards; old contents are lost when it has to grow.
  void reserve(size_t bytes);

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tailrace
