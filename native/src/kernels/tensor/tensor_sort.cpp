// SORT_INDICES: where the elements along an axis are in order, all of them or the first few.
//
// An element becomes an unsigned key that sorts like it beside its index, so that equals keep their
// order and nothing can upset a sort. A NaN is the largest; where indices are i32, it is the last.
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_sort(KernelTable& table);

namespace {

constexpr int64_t kFew = 48;       // sorted by insertion
constexpr int64_t kFewFirst = 16;  // found by a heap

// Keys of 32 bits: key and index in a word.
struct Narrow {
  static constexpr int kDigits = 4;
  uint64_t word;

  static Narrow of(uint64_t key, int64_t index) {
    return {key << 32 | static_cast<uint64_t>(index)};
  }
  bool operator<(const Narrow& other) const { return word < other.word; }
  uint64_t digit(int d) const { return word >> (32 + 8 * d) & 0xff; }
  int64_t index() const { return static_cast<int64_t>(word & 0xffffffffu); }
};

struct Wide {
  static constexpr int kDigits = 8;
  uint64_t key;
  int64_t at;

  static Wide of(uint64_t key, int64_t index) { return {key, index}; }
  bool operator<(const Wide& other) const {
    return key != other.key ? key < other.key : at < other.at;
  }
  uint64_t digit(int d) const { return key >> (8 * d) & 0xff; }
  int64_t index() const { return at; }
};

uint64_t float_key(float x) {
  x += 0.0f;  // -0 equals 0
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits ^= (0u - (bits >> 31)) | 0x80000000u;
  return bits;
}

// The key of a whole number, of 32 bits where the type has at most as many.
uint64_t whole_key(int64_t x, bool wide) {
  if (wide) return static_cast<uint64_t>(x) ^ 0x8000000000000000u;
  return static_cast<uint64_t>(x + 0x80000000ll);
}

template <typename E>
void load_line(const Call& call, const char* p, int64_t stride, int64_t n, E* entries) {
  const DType type = call.src[0]->type;
  const uint64_t turn = call.i(SortIndicesSlot::kDescending) == 0 ? 0
                        : E::kDigits == 8                         ? ~uint64_t{0}
                                                                  : 0xffffffffu;
  if (is_float(type)) {
    const uint64_t nan = call.dst.type == DType::kI32 ? 0xffffffffu : 0xffffffffu ^ turn;
    float buffer[kPiece];
    for (int64_t first = 0; first < n; first += kPiece) {
      const int64_t count = min64(kPiece, n - first);
      const float* values = numbers_at(p + first * stride, type, stride, count, buffer);
      for (int64_t i = 0; i < count; ++i) {
        const float x = values[i];
        entries[first + i] = E::of(x != x ? nan : float_key(x) ^ turn, first + i);
      }
    }
    return;
  }
  int64_t values[kPiece];
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = min64(kPiece, n - first);
    load_numbers(p + first * stride, type, stride, count, values);
    for (int64_t i = 0; i < count; ++i) {
      entries[first + i] = E::of(whole_key(values[i], E::kDigits == 8) ^ turn, first + i);
    }
  }
}

template <typename E>
void insertion_sort(E* a, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const E x = a[i];
    int64_t at = i;
    for (; at > 0 && x < a[at - 1]; --at) a[at] = a[at - 1];
    a[at] = x;
  }
}

// By the bytes of the key, lowest first; equals keep their order. Returns where the result is.
template <typename E>
E* radix_sort(E* a, E* other, int64_t n) {
  int64_t counts[E::kDigits][256] = {};
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (int d = 0; d < E::kDigits; ++d) ++counts[d][a[i].digit(d)];
  }
  for (int d = 0; d < E::kDigits; ++d) {
    if (counts[d][a[0].digit(d)] == n) continue;
    int64_t start = 0;
    for (int64_t& count : counts[d]) {
      const int64_t size = count;
      count = start;
      start += size;
    }
    for (int64_t i = 0; i < n; ++i) other[counts[d][a[i].digit(d)]++] = a[i];
    E* swap = a;
    a = other;
    other = swap;
  }
  return a;
}

// Restores the heap (largest first) below `at`.
template <typename E>
void sift_down(E* heap, int64_t n, int64_t at) {
  const E x = heap[at];
  for (;;) {
    int64_t child = 2 * at + 1;
    if (child >= n) break;
    if (child + 1 < n && heap[child] < heap[child + 1]) ++child;
    if (!(x < heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = x;
}

// The first `k` of `a`, in order, to its front.
template <typename E>
void select_first(E* a, int64_t n, int64_t k) {
  for (int64_t i = k / 2 - 1; i >= 0; --i) sift_down(a, k, i);
  for (int64_t i = k; i < n; ++i) {
    if (!(a[i] < a[0])) continue;
    a[0] = a[i];
    sift_down(a, k, 0);
  }
  for (int64_t last = k - 1; last > 0; --last) {
    const E x = a[last];
    a[last] = a[0];
    a[0] = x;
    sift_down(a, last, 0);
  }
}

template <typename I, typename E>
void put_indices(const E* sorted, int64_t k, char* out, int64_t stride) {
  for (int64_t i = 0; i < k; ++i) {
    const auto index = static_cast<I>(sorted[i].index());
    std::memcpy(out + i * stride, &index, sizeof index);
  }
}

template <typename E>
void run_of(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const auto axis = static_cast<int>(call.i(SortIndicesSlot::kAxis));
  const int64_t n = x.ne[axis], k = dst.ne[axis];
  Tensor lines = dst;
  lines.ne[axis] = 1;
  auto* entries = reinterpret_cast<E*>(scratch);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = axis == 0 ? item : item / lines.ne[0];
    const int64_t i0 = axis == 0 ? 0 : item - row * lines.ne[0];
    const Index at = row_index(lines, row);
    load_line(call, row_data(x, at) + i0 * x.nb[0], x.nb[axis], n, entries);
    const E* sorted = entries;
    if (k < n && (k <= kFewFirst || k <= n / 16)) {
      select_first(entries, n, k);
    } else if (n <= kFew) {
      insertion_sort(entries, n);
    } else {
      sorted = radix_sort(entries, entries + n, n);
    }
    char* out = row_data(dst, at) + i0 * dst.nb[0];
    if (dst.type == DType::kI32) {
      put_indices<int32_t>(sorted, k, out, dst.nb[axis]);
    } else {
      put_indices<int64_t>(sorted, k, out, dst.nb[axis]);
    }
  }
}

bool is_wide(const Call& call) { return call.src[0]->type == DType::kI64; }

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  is_wide(call) ? run_of<Wide>(call, begin, end, scratch)
                : run_of<Narrow>(call, begin, end, scratch);
}

int64_t items(const Call& call) {
  const Tensor& dst = call.dst;
  const int64_t k = dst.ne[call.i(SortIndicesSlot::kAxis)];
  return k == 0 ? 0 : n_elements(dst) / k;
}
// a sort costs several passes
int64_t grain(const Call& call) {
  return row_grain(8 * call.src[0]->ne[call.i(SortIndicesSlot::kAxis)]);
}

size_t scratch_bytes(const Call& call) {
  const auto n = static_cast<size_t>(call.src[0]->ne[call.i(SortIndicesSlot::kAxis)]);
  return 2 * n * (is_wide(call) ? sizeof(Wide) : sizeof(Narrow));
}

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  if (call.i(SortIndicesSlot::kAxis) < 0 || call.i(SortIndicesSlot::kAxis) > 3)
    return "an axis is 0 .. 3";
  if (!is_number(x.type) || !is_index(call.dst.type)) {
    return "needs numbers, and an i64 or i32 result";
  }
  for (int d = 0; d < 4; ++d) {
    const bool fits =
        call.i(SortIndicesSlot::kAxis) == d ? call.dst.ne[d] <= x.ne[d] : call.dst.ne[d] == x.ne[d];
    if (!fits) return "the result has other sizes";
  }
  const int64_t most = call.dst.type == DType::kI32 ? INT32_MAX : UINT32_MAX;
  return x.ne[call.i(SortIndicesSlot::kAxis)] > most ? "indices exceed 32 bits" : nullptr;
}

}  // namespace

void register_tensor_sort(KernelTable& table) {
  table[Op::kSortIndices] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
