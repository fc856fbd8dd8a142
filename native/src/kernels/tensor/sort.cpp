// ARGSORT and TOP_K: indices of a row in order of its elements.
//
// An element becomes an integer that sorts like it, with its index below: (key << 32) | index.
// Integers have a total order, so that a NaN (last, in both orders) cannot upset a sort, and equals
// keep their order.
#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

void register_sort(KernelTable& table);

namespace {

constexpr int64_t kFew = 48;  // sorted by insertion

uint64_t entry(float x, int64_t index, bool descending) {
  x += 0.0f;  // -0 equals 0
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (descending) key = ~key;
  if (x != x) key = 0xffffffffu;
  return static_cast<uint64_t>(key) << 32 | static_cast<uint64_t>(index);
}

void insertion_sort(uint64_t* a, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const uint64_t x = a[i];
    int64_t at = i;
    for (; at > 0 && a[at - 1] > x; --at) a[at] = a[at - 1];
    a[at] = x;
  }
}

// By the bytes of the key, lowest first; equals keep their order. Returns where the result is.
uint64_t* radix_sort(uint64_t* a, uint64_t* other, int64_t n) {
  int64_t counts[4][256] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (int digit = 0; digit < 4; ++digit) ++counts[digit][a[i] >> (32 + 8 * digit) & 0xff];
  }
  for (int digit = 0; digit < 4; ++digit) {
    const int shift = 32 + 8 * digit;
    if (counts[digit][a[0] >> shift & 0xff] == n) continue;
    int64_t start = 0;
    for (int64_t& count : counts[digit]) {
      const int64_t size = count;
      count = start;
      start += size;
    }
    for (int64_t i = 0; i < n; ++i) other[counts[digit][a[i] >> shift & 0xff]++] = a[i];
    uint64_t* swap = a;
    a = other;
    other = swap;
  }
  return a;
}

void write_indices(const uint64_t* a, int64_t n, const Tensor& dst, char* out) {
  for (int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<uint32_t>(a[i]);
    std::memcpy(out + i * dst.nb[0], &index, 4);
  }
}

void run_argsort(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const int64_t n = a.ne[0];
  const bool descending = call.as<SortOrder>(ArgsortSlot::kOrder) == SortOrder::kDesc;
  auto* entries = reinterpret_cast<uint64_t*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(a, row);
    const char* p = row_data(a, index);
    for (int64_t i = 0; i < n; ++i) {
      entries[i] = entry(load_element(p + i * a.nb[0], a.type), i, descending);
    }
    const uint64_t* sorted = entries;
    if (n <= kFew) {
      insertion_sort(entries, n);
    } else {
      sorted = radix_sort(entries, entries + n, n);
    }
    write_indices(sorted, n, call.dst, row_data(call.dst, index));
  }
}

// Restores the heap (largest first) below `at`.
void sift_down(uint64_t* heap, int64_t n, int64_t at) {
  const uint64_t x = heap[at];
  for (;;) {
    int64_t child = 2 * at + 1;
    if (child >= n) break;
    if (child + 1 < n && heap[child + 1] > heap[child]) ++child;
    if (heap[child] <= x) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = x;
}

void run_top_k(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const int64_t k = call.dst.ne[0];
  auto* heap = reinterpret_cast<uint64_t*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(a, row);
    const char* p = row_data(a, index);
    for (int64_t i = 0; i < k; ++i) heap[i] = entry(load_element(p + i * a.nb[0], a.type), i, true);
    for (int64_t i = k / 2 - 1; i >= 0; --i) sift_down(heap, k, i);
    for (int64_t i = k; i < a.ne[0]; ++i) {
      const uint64_t x = entry(load_element(p + i * a.nb[0], a.type), i, true);
      if (x >= heap[0]) continue;
      heap[0] = x;
      sift_down(heap, k, 0);
    }
    for (int64_t n = k - 1; n > 0; --n) {
      const uint64_t last = heap[n];
      heap[n] = heap[0];
      heap[0] = last;
      sift_down(heap, n, 0);
    }
    write_indices(heap, k, call.dst, row_data(call.dst, index));
  }
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  if (!is_float(a.type) || call.dst.type != DType::kI32) return "needs floats and an i32 result";
  if (a.ne[0] > INT32_MAX) return "indices exceed 32 bits";
  for (int d = 1; d < 4; ++d) {
    if (call.dst.ne[d] != a.ne[d]) return "result and source differ in rows";
  }
  return nullptr;
}

const char* check_argsort(const Call& call) {
  if (const char* why = check(call)) return why;
  return call.dst.ne[0] == call.src[0]->ne[0] ? nullptr : "result and source differ in shape";
}

const char* check_top_k(const Call& call) {
  if (const char* why = check(call)) return why;
  return call.dst.ne[0] <= call.src[0]->ne[0] ? nullptr
                                              : "more indices are asked for than there are";
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
// a sort costs several passes
int64_t grain(const Call& call) { return row_grain(8 * call.src[0]->ne[0]); }

size_t argsort_scratch(const Call& call) {
  return 2 * static_cast<size_t>(call.src[0]->ne[0]) * sizeof(uint64_t);
}
size_t top_k_scratch(const Call& call) {
  return static_cast<size_t>(call.dst.ne[0]) * sizeof(uint64_t);
}

}  // namespace

void register_sort(KernelTable& table) {
  table[Op::kArgsort] = {.check = check_argsort,
                         .items = items,
                         .run = run_argsort,
                         .grain = grain,
                         .scratch = argsort_scratch};
  table[Op::kTopK] = {.check = check_top_k,
                      .items = items,
                      .run = run_top_k,
                      .grain = grain,
                      .scratch = top_k_scratch};
}

}  // namespace weft::WEFT_TARGET
