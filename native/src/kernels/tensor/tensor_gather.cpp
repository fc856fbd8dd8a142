// GATHER, SCATTER: elements that an index tensor names along one axis.
#include "kernels/copy/copy_rows.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_gather(KernelTable& table);

namespace {

// Columns of an item of SCATTER, and the fewest where threads would have nothing to do.
constexpr int64_t kColumns = 512, kLeastColumns = 32;
constexpr int64_t kLeastPart = 4096;  // elements of a line

// ---- GATHER (x, indices): the sizes of the indices

template <typename T>
void gather(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  const auto axis = static_cast<int>(call.i(AxisSlot::kAxis));
  const int64_t size = x.ne[axis], step = x.nb[axis];
  for_pieces(dst, begin, end, [&](const Piece& p) {
    int64_t at_axis[kPiece];
    T values[kPiece];
    if (!indices_at(call, element(ids, p), ids.type, ids.nb[0], p.n, size, at_axis)) return;
    Index at = p.row;
    int64_t* const rest[4] = {nullptr, &at.i1, &at.i2, &at.i3};
    if (axis != 0) *rest[axis] = 0;
    const char* from = row_data(x, at) + (axis == 0 ? 0 : p.first * x.nb[0]);
    const int64_t across = axis == 0 ? 0 : x.nb[0];
    char* p_out = element(dst, p);
    T* out = element_room(p_out, dst.nb[0], values);
    if (axis == 0 && step == static_cast<int64_t>(sizeof(T))) {
      const auto* line = reinterpret_cast<const T*>(from);
      for (int64_t i = 0; i < p.n; ++i) out[i] = line[at_axis[i]];
    } else {
      for (int64_t i = 0; i < p.n; ++i) {
        std::memcpy(out + i, from + i * across + at_axis[i] * step, sizeof(T));
      }
    }
    put_elements(out, p.n, p_out, dst.nb[0]);
  });
}

void run_gather(const Call& call, int64_t begin, int64_t end, char*) {
  switch (element_size(call.dst.type)) {
    case 1:
      return gather<uint8_t>(call, begin, end);
    case 2:
      return gather<uint16_t>(call, begin, end);
    case 4:
      return gather<uint32_t>(call, begin, end);
    default:
      return gather<uint64_t>(call, begin, end);
  }
}

bool is_axis(int64_t axis) { return axis >= 0 && axis <= 3; }

// Whether `small` is at most as large as `big` in each dimension, but for the axis.
bool lies_within(const Tensor& small, const Tensor& big, int64_t but) {
  for (int d = 0; d < 4; ++d) {
    if (d != but && small.ne[d] > big.ne[d]) return false;
  }
  return true;
}

const char* check_gather(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[1];
  if (!is_axis(call.i(AxisSlot::kAxis))) return "an axis is 0 .. 3";
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (!is_element(x.type) || call.dst.type != x.type) return "needs x and a result of one type";
  if (!same_shape(call.dst, ids)) return "the result has the sizes of the indices";
  return lies_within(ids, x, call.i(AxisSlot::kAxis)) ? nullptr
                                                      : "there are more indices than lines";
}

// ---- SCATTER (x, indices, source)

// Adds an element: floats in float, whole numbers unsigned, so that they wrap around.
template <typename T>
void add_to(char* to, const char* from, DType) {
  T a, b;
  std::memcpy(&a, to, sizeof a);
  std::memcpy(&b, from, sizeof b);
  a = static_cast<T>(a + b);
  std::memcpy(to, &a, sizeof a);
}
struct Half {};  // either float of 16 bits
template <>
void add_to<Half>(char* to, const char* from, DType type) {
  store_element(to, type, load_element(to, type) + load_element(from, type));
}
template <typename T>
void set_to(char* to, const char* from, DType) {
  std::memcpy(to, from, sizeof(T));
}
using Put = void (*)(char* to, const char* from, DType type);

// An item: the lines along the axis of a run of columns, or a part of one line. Parts read all
// indices and write what is theirs: what an element gets is added in the order of the indices,
// whatever the parts.
struct Lines {
  int axis;
  int64_t columns;  // of a run
  int64_t runs;     // of columns, or parts of a line
  Tensor rest;      // the result without the axis and the innermost dimension

  Lines(const Call& call) : axis(static_cast<int>(call.i(ScatterSlot::kAxis))), rest(call.dst) {
    const Tensor& dst = call.dst;
    rest.ne[0] = 1;
    rest.ne[axis] = 1;
    const int64_t lines = max64(1, n_rows(rest));
    const int64_t wanted = (call.n_threads + lines - 1) / lines;
    if (axis == 0) {
      columns = max64(1, max64(kLeastPart, (dst.ne[0] + wanted - 1) / wanted));
    } else {
      columns = min64(kColumns, max64(kLeastColumns, dst.ne[0] / wanted));
    }
    runs = (dst.ne[0] + columns - 1) / columns;
  }
  int64_t items() const { return runs * n_rows(rest); }
};

// Elements `first` .. `last` of a line along dimension 0.
template <Put kPut>
void scatter_line(const Call& call, Index at, int64_t first, int64_t last) {
  const Tensor& ids = *call.src[1];
  const Tensor& source = *call.src[2];
  const Tensor& dst = call.dst;
  char* to = row_data(dst, at);
  for (int64_t start = 0; start < ids.ne[0]; start += kPiece) {
    const int64_t n = min64(kPiece, ids.ne[0] - start);
    int64_t index[kPiece];
    const char* id = row_data(ids, at) + start * ids.nb[0];
    if (!indices_at(call, id, ids.type, ids.nb[0], n, dst.ne[0], index)) return;
    const char* from = row_data(source, at) + start * source.nb[0];
    const bool all = first == 0 && last == dst.ne[0];
    for (int64_t i = 0; i < n; ++i) {
      if (!all && (index[i] < first || index[i] >= last)) continue;
      kPut(to + index[i] * dst.nb[0], from + i * source.nb[0], dst.type);
    }
  }
}

template <Put kPut>
void scatter_columns(const Call& call, int axis, Index at, int64_t first, int64_t n) {
  const Tensor& ids = *call.src[1];
  const Tensor& source = *call.src[2];
  const Tensor& dst = call.dst;
  char* to = row_data(dst, at) + first * dst.nb[0];
  n = min64(n, ids.ne[0] - first);
  for (int64_t k = 0; k < ids.ne[axis]; ++k) {
    int64_t index[kColumns];
    const char* id = row_data(ids, at) + first * ids.nb[0] + k * ids.nb[axis];
    if (!indices_at(call, id, ids.type, ids.nb[0], n, dst.ne[axis], index)) return;
    const char* from = row_data(source, at) + first * source.nb[0] + k * source.nb[axis];
    for (int64_t i = 0; i < n; ++i) {
      kPut(to + i * dst.nb[0] + index[i] * dst.nb[axis], from + i * source.nb[0], dst.type);
    }
  }
}

template <Put kPut>
void scatter(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  const Lines lines(call);
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(lines.rest, item / lines.runs);
    const int64_t first = item % lines.runs * lines.columns;
    const int64_t n = min64(lines.columns, dst.ne[0] - first);
    const int64_t rows = lines.axis == 0 ? 1 : dst.ne[lines.axis];
    for (int64_t k = 0; k < rows; ++k) {
      const auto place = [&](const Tensor& t) {
        const int64_t along = lines.axis == 0 ? 0 : k * t.nb[lines.axis];
        return row_data(t, at) + first * t.nb[0] + along;
      };
      move_units(dst.type, place(x), x.nb[0], place(dst), dst.nb[0], n);
    }
    if (at.i1 >= ids.ne[1] || at.i2 >= ids.ne[2] || at.i3 >= ids.ne[3]) continue;
    if (lines.axis == 0) {
      scatter_line<kPut>(call, at, first, first + n);
    } else {
      scatter_columns<kPut>(call, lines.axis, at, first, n);
    }
  }
}

bool is_add(const Call& call) {
  return call.as<ScatterMode>(ScatterSlot::kMode) == ScatterMode::kAdd;
}

void run_scatter(const Call& call, int64_t begin, int64_t end, char*) {
  const bool adds = is_add(call);
  const DType type = call.dst.type;
  const int64_t size = element_size(type);
  if (adds && type == DType::kF32) return scatter<add_to<float>>(call, begin, end);
  if (adds && is_float(type)) return scatter<add_to<Half>>(call, begin, end);
  switch (size) {
    case 1:
      return adds ? scatter<add_to<uint8_t>>(call, begin, end)
                  : scatter<set_to<uint8_t>>(call, begin, end);
    case 2:
      return adds ? scatter<add_to<uint16_t>>(call, begin, end)
                  : scatter<set_to<uint16_t>>(call, begin, end);
    case 4:
      return adds ? scatter<add_to<uint32_t>>(call, begin, end)
                  : scatter<set_to<uint32_t>>(call, begin, end);
    default:
      return adds ? scatter<add_to<uint64_t>>(call, begin, end)
                  : scatter<set_to<uint64_t>>(call, begin, end);
  }
}

int64_t items_scatter(const Call& call) { return Lines(call).items(); }
int64_t grain_scatter(const Call& call) {
  return row_grain(n_elements(call.dst) / max64(1, items_scatter(call)));
}

const char* check_scatter(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& source = *call.src[2];
  if (!is_axis(call.i(ScatterSlot::kAxis))) return "an axis is 0 .. 3";
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (!(is_add(call) ? is_number(x.type) : is_element(x.type)) || call.dst.type != x.type ||
      source.type != x.type) {
    return "needs x, source and a result of one type";
  }
  if (!same_shape(call.dst, x)) return "the result has the sizes of x";
  return lies_within(ids, x, call.i(ScatterSlot::kAxis)) && lies_within(ids, source, -1)
             ? nullptr
             : "there are more indices than elements";
}

}  // namespace

void register_tensor_gather(KernelTable& table) {
  table[Op::kGather] = {
      .check = check_gather, .items = element_items, .run = run_gather, .grain = element_grain};
  table[Op::kScatter] = {
      .check = check_scatter, .items = items_scatter, .run = run_scatter, .grain = grain_scatter};
}

}  // namespace weft::WEFT_TARGET
