#include "common.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace tailrace {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

Memory::Memory(size_t bytes) { reserve(bytes); }

Memory::~Memory() {
  if (data_) munmap(data_, bytes_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Memory::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  const size_t size = round_up(bytes, bytes >= kHugePage ? kHugePage : 4096);
  void* fresh = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) throw std::bad_alloc();
  if (size >= kHugePage) madvise(fresh, size, MADV_HUGEPAGE);
  if (data_) munmap(data_, bytes_);
  data_ = static_cast<uint8_t*>(fresh);
  bytes_ = size;
}

}  // namespace tailrace
