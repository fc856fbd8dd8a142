// GATHER, SCATTER: elements that an index tensor names along one axis.
#include "kernels/copy_rows.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_gather(KernelTable& table);

namespace {

constexpr int64_t kColumns = 512;  // of an item of SCATTER

// ---- GATHER (x, indices): the sizes of the indices

template <typename T>
void gather(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  const auto axis = static_cast<int>(call.i(0));
  const int64_t size = x.ne[axis], step = x.nb[axis];
  for_pieces(dst, begin, end, [&](const Piece& p) {
    const char* id = element(ids, p);
    char* out = element(dst, p);
    Index at = p.row;
    int64_t* const rest[4] = {nullptr, &at.i1, &at.i2, &at.i3};
    if (axis != 0) *rest[axis] = 0;
    const char* from = row_data(x, at) + (axis == 0 ? 0 : p.first * x.nb[0]);
    const int64_t across = axis == 0 ? 0 : x.nb[0];
    for (int64_t i = 0; i < p.n; ++i) {
      const int64_t index = index_at(call, id + i * ids.nb[0], ids.type, size);
      if (index < 0) return;
      T v;
      std::memcpy(&v, from + i * across + index * step, sizeof v);
      std::memcpy(out + i * dst.nb[0], &v, sizeof v);
    }
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

bool is_axis(const Call& call) { return call.n_params >= 1 && call.i(0) >= 0 && call.i(0) <= 3; }

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
  if (!is_axis(call)) return "an axis is 0 .. 3";
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (!is_element(x.type) || call.dst.type != x.type) return "needs x and a result of one type";
  if (!same_shape(call.dst, ids)) return "the result has the sizes of the indices";
  return lies_within(ids, x, call.i(0)) ? nullptr : "there are more indices than lines";
}

// ---- SCATTER (x, indices, source): slots axis, mode

void add_element(char* to, const char* from, DType type) {
  if (is_float(type)) {
    return store_element(to, type, load_element(to, type) + load_element(from, type));
  }
  int64_t a, b;
  load_numbers(to, type, 0, 1, &a);
  load_numbers(from, type, 0, 1, &b);
  a = static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  store_numbers(&a, 1, to, type, 0);
}

// An item: the lines along the axis of a run of columns.
struct Lines {
  int axis;
  int64_t runs;
  Tensor rest;  // the result without the axis and the innermost dimension

  Lines(const Tensor& dst, int64_t along) : axis(static_cast<int>(along)), rest(dst) {
    runs = axis == 0 ? 1 : (dst.ne[0] + kColumns - 1) / kColumns;
    rest.ne[0] = 1;
    rest.ne[axis] = 1;
  }
  int64_t items() const { return runs * n_rows(rest); }
};

void scatter_lines(const Call& call, const Lines& lines, Index at, int64_t first, int64_t n) {
  const Tensor& ids = *call.src[1];
  const Tensor& source = *call.src[2];
  const Tensor& dst = call.dst;
  const int axis = lines.axis;
  const bool adds = call.i(1) != 0;
  const int64_t size = dst.ne[axis];
  if (at.i1 >= ids.ne[1] || at.i2 >= ids.ne[2] || at.i3 >= ids.ne[3]) return;
  const int64_t columns = axis == 0 ? 1 : min64(n, ids.ne[0] - first);
  for (int64_t k = 0; k < ids.ne[axis]; ++k) {
    for (int64_t i = 0; i < columns; ++i) {
      const int64_t c = axis == 0 ? 0 : first + i;
      const auto place = [&](const Tensor& t, int64_t along) {
        return row_data(t, at) + c * t.nb[0] + along * t.nb[axis];
      };
      const int64_t index = index_at(call, place(ids, k), ids.type, size);
      if (index < 0) return;
      char* to = place(dst, index);
      if (adds) {
        add_element(to, place(source, k), dst.type);
      } else {
        std::memcpy(to, place(source, k), static_cast<size_t>(element_size(dst.type)));
      }
    }
  }
}

void run_scatter(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const Lines lines(dst, call.i(0));
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(lines.rest, item / lines.runs);
    const int64_t first = item % lines.runs * kColumns;
    const int64_t n = lines.axis == 0 ? dst.ne[0] : min64(kColumns, dst.ne[0] - first);
    const int64_t rows = lines.axis == 0 ? 1 : dst.ne[lines.axis];
    for (int64_t k = 0; k < rows; ++k) {
      const auto place = [&](const Tensor& t) {
        const int64_t along = lines.axis == 0 ? 0 : k * t.nb[lines.axis];
        return row_data(t, at) + first * t.nb[0] + along;
      };
      move_units(dst.type, place(x), x.nb[0], place(dst), dst.nb[0], n);
    }
    scatter_lines(call, lines, at, first, n);
  }
}

int64_t items_scatter(const Call& call) { return Lines(call.dst, call.i(0)).items(); }
int64_t grain_scatter(const Call& call) {
  return row_grain(n_elements(call.dst) / max64(1, items_scatter(call)));
}

const char* check_scatter(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& source = *call.src[2];
  if (!is_axis(call) || call.n_params < 2) return "an axis is 0 .. 3";
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (!(call.i(1) != 0 ? is_number(x.type) : is_element(x.type)) || call.dst.type != x.type ||
      source.type != x.type) {
    return "needs x, source and a result of one type";
  }
  if (!same_shape(call.dst, x)) return "the result has the sizes of x";
  return lies_within(ids, x, call.i(0)) && lies_within(ids, source, -1)
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
