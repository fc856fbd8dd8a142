// INDEX, INDEX_PUT: up to four index tensors that broadcast, on any axes.
//
// A dimension of the picked tensor (the result of INDEX, the values of INDEX_PUT) is either one of
// the indices together, or a dimension of x that has no index.
#include <type_traits>

#include "kernels/copy/copy_rows.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_index(KernelTable& table);

namespace {

constexpr int64_t kColumns = 512;  // of an item of INDEX_PUT

// The parameters that INDEX and INDEX_PUT share lie in the same slots.
using enum IndexSlot;
static_assert(static_cast<int>(kAxes) == static_cast<int>(IndexPutSlot::kAxes) &&
              static_cast<int>(kRank) == static_cast<int>(IndexPutSlot::kRank) &&
              static_cast<int>(kFirst) == static_cast<int>(IndexPutSlot::kFirst));

struct Picked {
  int n = 0;            // index tensors
  Tensor ids[4];        // spread to what they are together
  int axis[4];          // of x
  int64_t together[4];  // sizes of the indices together, in the picked tensor's dimensions from
  int first;            // `first` on,
  int rank;             // `rank` of them
  int from[4];          // of x, for the picked tensor's other dimensions; -1: an index, or size 1
  int64_t ne[4];        // of the picked tensor

  Picked(const Call& call, const Tensor& x, int first_source) {
    const int64_t axes = call.i(kAxes);
    rank = static_cast<int>(call.i(kRank));
    first = static_cast<int>(call.i(kFirst));
    for (int64_t& size : together) size = 1;
    for (int d = 0; d < 4; ++d) {
      if ((axes >> d & 1) == 0) continue;
      axis[n] = d;
      ids[n] = *call.src[first_source + n];
      for (int i = 0; i < 4; ++i) together[i] = max64(together[i], ids[n].ne[i]);
      for (int i = 0; i < 4; ++i) {
        if (ids[n].ne[i] == 0) together[i] = 0;
      }
      ++n;
    }
    for (int k = 0; k < n; ++k) {
      for (int i = 0; i < 4; ++i) {
        if (ids[k].ne[i] == 1) ids[k].nb[i] = 0;
      }
    }
    int d = 0;
    for (int k = 0; k < 4; ++k) {
      from[k] = -1;
      ne[k] = 1;
      if (k >= first && k < first + rank) {
        ne[k] = together[k - first];
        continue;
      }
      while (d < 4 && (axes >> d & 1) != 0) ++d;
      if (d == 4) continue;
      from[k] = d;
      ne[k] = x.ne[d++];
    }
  }

  // Whether a dimension of the picked tensor is one of the indices.
  bool is_index_dim(int k) const { return k >= first && k < first + rank; }

  // Bytes in `x` to what the indices at `at` (in dimensions of `together`) name; -1: outside.
  int64_t offset(const Call& call, const Tensor& x, const int64_t* at) const {
    int64_t bytes = 0;
    for (int k = 0; k < n; ++k) {
      const Tensor& t = ids[k];
      const char* p = t.data;
      for (int i = 0; i < 4; ++i) p += at[i] * t.nb[i];
      const int64_t index = index_at(call, p, t.type, x.ne[axis[k]]);
      if (index < 0) return -1;
      bytes += index * x.nb[axis[k]];
    }
    return bytes;
  }

  // The same for `count` <= kPiece indices along dimension 0, from `at` on; false: one is outside.
  bool offsets(const Call& call, const Tensor& x, const int64_t* at, int64_t count,
               int64_t* bytes) const {
    int64_t more[kPiece];
    for (int k = 0; k < n; ++k) {
      const Tensor& t = ids[k];
      const char* p = t.data;
      for (int i = 0; i < 4; ++i) p += at[i] * t.nb[i];
      const int64_t step = x.nb[axis[k]];
      if (!indices_at(call, p, t.type, t.nb[0], count, x.ne[axis[k]], more)) return false;
      for (int64_t i = 0; i < count; ++i) bytes[i] = (k == 0 ? 0 : bytes[i]) + more[i] * step;
    }
    return true;
  }
};

const char* check_picked(const Call& call, const Tensor& x, int first_source) {
  if (call.i(kAxes) <= 0 || call.i(kAxes) > 15 || call.i(kRank) < 0 || call.i(kFirst) < 0 ||
      call.i(kRank) + call.i(kFirst) > 4) {
    return "the parameters name no axes";
  }
  if (!is_element(x.type) || call.dst.type != x.type) return "needs x and a result of one type";
  const int n = __builtin_popcountll(static_cast<uint64_t>(call.i(kAxes)));
  for (int i = 0; i < n; ++i) {
    const Tensor* t = call.src[first_source + i];
    if (t == nullptr || !is_index(t->type)) return "an index of i32 or i64 is needed for each axis";
  }
  const Picked p(call, x, first_source);
  for (int k = 0; k < p.n; ++k) {
    for (int i = 0; i < 4; ++i) {
      if (p.ids[k].ne[i] != 1 && p.ids[k].ne[i] != p.together[i]) {
        return "the indices do not broadcast";
      }
    }
  }
  for (int i = p.rank; i < 4; ++i) {
    if (p.together[i] != 1) return "the indices have more dimensions than the rank";
  }
  // what has no dimension in the picked tensor must be of size 1
  for (int d = 0; d < 4; ++d) {
    bool found = (call.i(kAxes) >> d & 1) != 0 || x.ne[d] == 1;
    for (int from : p.from) found = found || from == d;
    if (!found) return "the result has too few dimensions";
  }
  return nullptr;
}

// ---- INDEX (x, indices...)

void run_index(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const Picked picked(call, x, 1);
  const int64_t size = element_size(x.type);
  const int64_t step = picked.from[0] >= 0 ? x.nb[picked.from[0]] : size;
  // Where the piece at `where` of the result begins in x, without the indices; sets `at` to the
  // place of its indices.
  const auto begin_of = [&](const int64_t* where, int64_t* at) {
    const char* from = x.data;
    for (int k = 0; k < 4; ++k) {
      if (picked.is_index_dim(k)) at[k - picked.first] = where[k];
      if (picked.from[k] >= 0) from += where[k] * x.nb[picked.from[k]];
    }
    return from;
  };
  if (picked.is_index_dim(1) && !picked.is_index_dim(0) && row_items(dst) == 1) {
    // An index for each row: they are read together.
    return for_runs(dst, begin, end, [&](Index row, int64_t rows) {
      for (int64_t first = 0; first < rows; first += kPiece) {
        const int64_t where[4] = {0, row.i1 + first, row.i2, row.i3};
        const int64_t n = min64(kPiece, rows - first);
        int64_t at[4] = {};
        int64_t offsets[kPiece];
        const char* from = begin_of(where, at);
        if (!picked.offsets(call, x, at, n, offsets)) return;
        char* out = dst.data + where[1] * dst.nb[1] + row.i2 * dst.nb[2] + row.i3 * dst.nb[3];
        if (step == size && dst.nb[0] == size) {
          const int64_t bytes = dst.ne[0] * size;
          for (int64_t i = 0; i < n; ++i) move_bytes(from + offsets[i], out + i * dst.nb[1], bytes);
        } else {
          for (int64_t i = 0; i < n; ++i) {
            move_units(x.type, from + offsets[i], step, out + i * dst.nb[1], dst.nb[0], dst.ne[0]);
          }
        }
      }
    });
  }
  int64_t offsets[kPiece];
  int64_t known[4] = {-1, 0, 0, 0};  // the place of the indices that `offsets` come from
  for_pieces(dst, begin, end, [&](const Piece& p) {
    const int64_t where[4] = {p.first, p.row.i1, p.row.i2, p.row.i3};
    int64_t at[4] = {};
    const char* from = begin_of(where, at);
    char* out = element(dst, p);
    if (!picked.is_index_dim(0)) {
      const int64_t offset = picked.offset(call, x, at);
      if (offset < 0) return;
      return move_units(x.type, from + offset, step, out, dst.nb[0], p.n);
    }
    if (std::memcmp(at, known, sizeof at) != 0) {
      known[0] = -1;
      if (!picked.offsets(call, x, at, p.n, offsets)) return;
      std::memcpy(known, at, sizeof at);
    }
    const auto move = [&](auto one) {
      using T = decltype(one);
      for (int64_t i = 0; i < p.n; ++i)
        std::memcpy(out + i * dst.nb[0], from + offsets[i], sizeof(T));
    };
    size == 1   ? move(uint8_t{})
    : size == 2 ? move(uint16_t{})
    : size == 4 ? move(uint32_t{})
                : move(uint64_t{});
  });
}

const char* check_index(const Call& call) {
  if (const char* why = check_picked(call, *call.src[0], 1)) return why;
  const Picked p(call, *call.src[0], 1);
  for (int k = 0; k < 4; ++k) {
    if (call.dst.ne[k] != p.ne[k]) return "the result has other sizes";
  }
  return nullptr;
}

// ---- INDEX_PUT (x, values, indices...)
//
// First all of x is copied. An item then goes through all indices, for one place (or a run of
// columns) in the dimensions that have none: no two items write the same element.

struct Places {
  int64_t sizes[4];  // of the picked tensor's dimensions without an index
  int64_t runs;      // of columns, where dimension 0 is such

  explicit Places(const Picked& p) {
    for (int k = 0; k < 4; ++k) sizes[k] = p.is_index_dim(k) ? 1 : p.ne[k];
    runs = p.is_index_dim(0) ? 1 : (sizes[0] + kColumns - 1) / kColumns;
  }
  int64_t items() const { return runs * sizes[1] * sizes[2] * sizes[3]; }
};

// Adds whole vectors of kCount floats from `i` on.
template <int kCount>
inline void add_vectors(const float* from, float* to, int64_t n, int64_t& i) {
  using Part [[gnu::vector_size(kCount * 4)]] = float;
  for (; i + kCount <= n; i += kCount) {
    Part a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a += b;
    std::memcpy(to + i, &a, sizeof a);
  }
}

// Parts of vectors are added in smaller ones: a masked store takes longer than a short row.
inline void add_floats(const float* from, float* to, int64_t n) {
  int64_t i = 0;
  if (kLanes > 8) add_vectors<kLanes>(from, to, n, i);
  if (kLanes > 4) add_vectors<8>(from, to, n, i);
  add_vectors<4>(from, to, n, i);
  for (; i < n; ++i) to[i] += from[i];
}

template <typename T>
inline void add_plain(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n) {
  const auto size = static_cast<int64_t>(sizeof(T));
  if (from_step == size && to_step == size) {
    auto* p = reinterpret_cast<T*>(to);
    const auto* q = reinterpret_cast<const T*>(from);
    if constexpr (std::is_same_v<T, float>) {
      return add_floats(q, p, n);
    }
    for (int64_t i = 0; i < n; ++i) p[i] = static_cast<T>(p[i] + q[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    T a, b;
    std::memcpy(&a, to + i * to_step, sizeof a);
    std::memcpy(&b, from + i * from_step, sizeof b);
    a = static_cast<T>(a + b);
    std::memcpy(to + i * to_step, &a, sizeof a);
  }
}

// Values for `count` places of `to`, and from each place on for `n` elements.
struct Values {
  const char* data;
  int64_t row_step, step;  // bytes from place to place, and from element to element
  int64_t count, n;
};

// Whole numbers wrap around.
void add_values(DType type, const Values& v, char* to, const int64_t* offsets, int64_t to_step) {
  const auto add = [&](auto one) {
    for (int64_t i = 0; i < v.count; ++i) {
      add_plain<decltype(one)>(v.data + i * v.row_step, v.step, to + offsets[i], to_step, v.n);
    }
  };
  if (type == DType::kF32) return add(float{});
  if (type == DType::kI8) return add(uint8_t{});
  if (type == DType::kI16) return add(uint16_t{});
  if (type == DType::kI32) return add(uint32_t{});
  if (type == DType::kI64) return add(uint64_t{});
  for (int64_t i = 0; i < v.count; ++i) {
    for (int64_t k = 0; k < v.n; ++k) {
      char* p = to + offsets[i] + k * to_step;
      const char* q = v.data + i * v.row_step + k * v.step;
      store_element(p, type, load_element(p, type) + load_element(q, type));
    }
  }
}

void set_values(DType type, const Values& v, char* to, const int64_t* offsets, int64_t to_step) {
  const int64_t size = element_size(type);
  if (v.n == 1 || (v.step == size && to_step == size)) {
    for (int64_t i = 0; i < v.count; ++i) {
      move_bytes(v.data + i * v.row_step, to + offsets[i], v.n * size);
    }
    return;
  }
  for (int64_t i = 0; i < v.count; ++i) {
    move_units(type, v.data + i * v.row_step, v.step, to + offsets[i], to_step, v.n);
  }
}

void run_put(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& dst = call.dst;
  const Picked picked(call, dst, 2);
  const Places places(picked);
  Tensor values = *call.src[1];
  for (int k = 0; k < 4; ++k) {
    if (values.ne[k] == 1) values.nb[k] = 0;
  }
  const bool adds = call.i(IndexPutSlot::kAccumulate) != 0;
  for (int64_t item = begin; item < end; ++item) {
    int64_t where[4] = {item % places.runs * kColumns, 0, 0, 0};
    int64_t rest = item / places.runs;
    for (int k = 1; k < 4; ++k) {
      where[k] = rest % places.sizes[k];
      rest /= places.sizes[k];
    }
    const int64_t n = min64(kColumns, places.sizes[0] - where[0]);
    char* to = dst.data;
    const char* from = values.data;
    for (int k = 0; k < 4; ++k) {
      if (picked.from[k] >= 0) to += where[k] * dst.nb[picked.from[k]];
      from += where[k] * values.nb[k];
    }
    const int64_t to_step = picked.from[0] >= 0 ? dst.nb[picked.from[0]] : 0;
    const int64_t* t = picked.together;
    const int64_t rows = t[1] * t[2] * t[3];
    const int64_t value_step = picked.rank > 0 ? values.nb[picked.first] : 0;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t at[4] = {0, row % t[1], row / t[1] % t[2], row / (t[1] * t[2])};
      for (int64_t first = 0; first < t[0]; first += kPiece) {
        const int64_t count = min64(kPiece, t[0] - first);
        int64_t offsets[kPiece];
        at[0] = first;
        if (!picked.offsets(call, dst, at, count, offsets)) return;
        const char* value = from;
        for (int k = 0; k < picked.rank; ++k) value += at[k] * values.nb[picked.first + k];
        const Values some = {value, value_step, values.nb[0], count, n};
        (adds ? add_values : set_values)(dst.type, some, to, offsets, to_step);
      }
    }
  }
}

int64_t items_put(const Call& call) {
  const Picked picked(call, call.dst, 2);
  return Places(picked).items();
}

// A unit of the copy is as many items as are worth a thread: threads claim units one by one.
int64_t prepare_units(const Call& call) {
  const int64_t grain = element_grain(call);
  return (element_items(call) + grain - 1) / grain;
}
void prepare(const Call& call, int64_t begin, int64_t end) {
  const DType type = call.dst.type;
  const int64_t grain = element_grain(call);
  const int64_t last = min64(end * grain, element_items(call));
  for_operands(Operands(call, 1), begin * grain, last,
               [&](char* const* p, const int64_t* steps, int64_t n) {
                 move_units(type, p[1], steps[1], p[0], steps[0], n);
               });
}

const char* check_put(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& values = *call.src[1];
  if (!same_shape(x, call.dst)) return "the result has the sizes of x";
  if (values.type != x.type) return "x and values must have one type";
  if (call.i(IndexPutSlot::kAccumulate) != 0 && !is_number(x.type))
    return "only numbers can be added";
  if (const char* why = check_picked(call, x, 2)) return why;
  const Picked p(call, x, 2);
  for (int k = 0; k < 4; ++k) {
    if (values.ne[k] != 1 && values.ne[k] != p.ne[k]) return "values do not broadcast";
  }
  return nullptr;
}

int64_t grain_put(const Call& call) {
  return row_grain(n_elements(*call.src[1]) / max64(1, items_put(call)));
}

}  // namespace

void register_tensor_index(KernelTable& table) {
  table[Op::kIndex] = {
      .check = check_index, .items = element_items, .run = run_index, .grain = element_grain};
  table[Op::kIndexPut] = {.check = check_put,
                          .items = items_put,
                          .run = run_put,
                          .grain = grain_put,
                          .prepare_units = prepare_units,
                          .prepare = prepare};
}

}  // namespace weft::WEFT_TARGET
