// CONT, CPY: copy the elements of src0 in order into a result with the same number of elements, for
// any two shapes and strides. QUANTIZE: converts rows to the type that a matmul reads.
//
// Elements of equal types are copied byte by byte (which keeps NaN payloads and blocks); others are
// converted through floats.
#include "kernels/copy/copy_rows.h"

namespace weft::WEFT_TARGET {

void register_copy(KernelTable& table);

namespace {

// The most elements of an item, a multiple of every block length.
constexpr int64_t kPiece = 2048;

// Source and result of a call. With kMerge, dimensions that are contiguous in both are merged, so
// that rows are long.
struct Plan {
  Tensor src;
  Tensor dst;
  int64_t pieces;  // items per destination row
};

// Whether each row begins where the one before it ends.
bool runs_on(const Tensor& t) { return t.ne[1] == 1 || t.nb[1] == row_units(t) * t.nb[0]; }

// Removes dimension `first`. The stride of the new last dimension, of size 1, is never used.
void drop_dimension(Tensor& t, int first) {
  for (int d = first; d < 3; ++d) {
    t.ne[d] = t.ne[d + 1];
    t.nb[d] = t.nb[d + 1];
  }
  t.ne[3] = 1;
}

void merge_first_two(Tensor& t) {
  t.ne[0] *= t.ne[1];
  drop_dimension(t, 1);
}

// Whether there are several rows of one element each.
bool is_column(const Tensor& t) { return t.ne[0] == 1 && n_rows(t) > 1; }

template <bool kMerge>
Plan make_plan(const Call& call) {
  Plan plan = {*call.src[0], call.dst, 0};
  if (kMerge && same_shape(plan.src, plan.dst)) {
    while (is_column(plan.src)) {
      drop_dimension(plan.src, 0);
      drop_dimension(plan.dst, 0);
    }
    for (int d = 1; d < 4 && runs_on(plan.src) && runs_on(plan.dst); ++d) {
      merge_first_two(plan.src);
      merge_first_two(plan.dst);
    }
  } else if (kMerge && is_contiguous(plan.src) && is_contiguous(plan.dst)) {
    for (int d = 1; d < 4; ++d) {
      merge_first_two(plan.src);
      merge_first_two(plan.dst);
    }
  }
  plan.pieces = (plan.dst.ne[0] + kPiece - 1) / kPiece;
  return plan;
}

// Calls piece(source row, start, count, offset) for each source row with some of the elements
// first..first+n: its elements start..start+count are those from first + offset on.
template <typename F>
void for_source(const Tensor& src, int64_t first, int64_t n, F piece) {
  int64_t row = first / src.ne[0];
  int64_t start = first - row * src.ne[0];
  for (int64_t offset = 0; offset < n; ++row, start = 0) {
    const int64_t count = min64(n - offset, src.ne[0] - start);
    piece(row_data(src, row_index(src, row)), start, count, offset);
    offset += count;
  }
}

void copy_piece(const Plan& plan, int64_t row, int64_t start, int64_t n, float scale,
                float* scratch) {
  const Tensor& src = plan.src;
  const Tensor& dst = plan.dst;
  char* out = row_data(dst, row_index(dst, row));
  const int64_t first = row * dst.ne[0] + start;
  if (src.type == dst.type) {
    const int64_t unit = unit_elements(src.type);
    char* to = out + start / unit * dst.nb[0];
    for_source(src, first, n, [&](const char* from, int64_t at, int64_t count, int64_t offset) {
      move_units(src.type, from + at / unit * src.nb[0], src.nb[0], to + offset / unit * dst.nb[0],
                 dst.nb[0], count / unit);
    });
    return;
  }
  const float* values = scratch;
  for_source(src, first, n, [&](const char* from, int64_t at, int64_t count, int64_t offset) {
    if (count == n && is_plain_row(src)) {
      values = reinterpret_cast<const float*>(from) + at;
    } else if (count == n && is_plain_row(dst)) {
      load_range(src, from, at, n, scale, reinterpret_cast<float*>(out) + start);
      values = nullptr;
    } else {
      load_range(src, from, at, count, scale, scratch + offset);
    }
  });
  if (values != nullptr) store_range(values, n, dst, out, start);
}

// Whether the source is transposed: its elements are adjacent along dimension 1. Copying it row by
// row would touch a cache line per element.
bool is_transposed(const Plan& plan) {
  const int64_t size = unit_bytes(plan.src.type);
  return plan.src.type == plan.dst.type && (size == 2 || size == 4) && plan.pieces == 1 &&
         same_shape(plan.src, plan.dst) && plan.src.nb[1] == size && plan.src.nb[0] > size &&
         plan.dst.nb[0] == size;
}

// Copies `rows` rows of kPlanes elements from planes, such as the colours of an image, which are
// `plane` bytes apart. Compilers vectorize this loop.
template <typename T, int kPlanes>
void interleave(const char* from, int64_t plane, char* to, int64_t rows) {
  constexpr int64_t kSize = sizeof(T);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kPlanes; ++i) {
      std::memcpy(to + (r * kPlanes + i) * kSize, from + i * plane + r * kSize, sizeof(T));
    }
  }
}

template <typename T, int kPlanes>
void copy_planes(const Plan& plan, int64_t begin, int64_t end) {
  for_runs(plan.dst, begin, end, [&](Index at, int64_t rows) {
    interleave<T, kPlanes>(row_data(plan.src, at), plan.src.nb[0], row_data(plan.dst, at), rows);
  });
}

template <typename T>
void copy_transposed(const Plan& plan, int64_t begin, int64_t end) {
  if (plan.dst.nb[1] == row_units(plan.dst) * plan.dst.nb[0]) {
    if (plan.dst.ne[0] == 2) return copy_planes<T, 2>(plan, begin, end);
    if (plan.dst.ne[0] == 3) return copy_planes<T, 3>(plan, begin, end);
    if (plan.dst.ne[0] == 4) return copy_planes<T, 4>(plan, begin, end);
  }
  constexpr int64_t kSide = 16;
  const Tensor& src = plan.src;
  const Tensor& dst = plan.dst;
  for (int64_t row = begin; row < end;) {
    const Index at = row_index(dst, row);
    const int64_t rows = min64(min64(kSide, end - row), dst.ne[1] - at.i1);
    const char* from = row_data(src, at);
    char* to = row_data(dst, at);
    for (int64_t first = 0; first < dst.ne[0]; first += kSide) {
      const int64_t n = min64(kSide, dst.ne[0] - first);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = first; i < first + n; ++i) {
          std::memcpy(to + r * dst.nb[1] + i * static_cast<int64_t>(sizeof(T)),
                      from + i * src.nb[0] + r * static_cast<int64_t>(sizeof(T)), sizeof(T));
        }
      }
    }
    row += rows;
  }
}

// Whether both have short, contiguous rows: finding each by its number would take longer than
// copying it.
bool is_narrow(const Plan& plan) {
  const int64_t size = unit_bytes(plan.src.type);
  return plan.src.type == plan.dst.type && plan.pieces == 1 && same_shape(plan.src, plan.dst) &&
         plan.src.nb[0] == size && plan.dst.nb[0] == size;
}

void copy_narrow(const Plan& plan, int64_t begin, int64_t end) {
  const int64_t bytes = row_units(plan.dst) * plan.dst.nb[0];
  for_runs(plan.dst, begin, end, [&](Index at, int64_t rows) {
    const char* from = row_data(plan.src, at);
    char* to = row_data(plan.dst, at);
    const int64_t from_step = plan.src.nb[1], to_step = plan.dst.nb[1];
    for (int64_t r = 0; r < rows; ++r) move_bytes(from + r * from_step, to + r * to_step, bytes);
  });
}

template <bool kMerge>
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Plan plan = make_plan<kMerge>(call);
  if (is_narrow(plan)) return copy_narrow(plan, begin, end);
  if (is_transposed(plan)) {
    return (unit_bytes(plan.src.type) == 2 ? copy_transposed<uint16_t>
                                           : copy_transposed<uint32_t>)(plan, begin, end);
  }
  const float scale = tensor_scale(*call.src[0]);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / plan.pieces;
    const int64_t start = (item - row * plan.pieces) * kPiece;
    const int64_t n = min64(kPiece, plan.dst.ne[0] - start);
    copy_piece(plan, row, start, n, scale, reinterpret_cast<float*>(scratch));
  }
}

template <bool kMerge>
int64_t items(const Call& call) {
  const Plan plan = make_plan<kMerge>(call);
  return n_rows(plan.dst) * plan.pieces;
}

template <bool kMerge>
int64_t grain(const Call& call) {
  const Plan plan = make_plan<kMerge>(call);
  return plan.pieces > 1 ? 1 : row_grain(plan.dst.ne[0]);
}

size_t scratch(const Call& call) {
  return call.src[0]->type == call.dst.type ? 0 : kPiece * sizeof(float);
}

const char* check_copy(const Call& call) {
  const Tensor& src = *call.src[0];
  if (n_elements(src) != n_elements(call.dst)) {
    return "source and result differ in their number of elements";
  }
  if (src.type == call.dst.type) {
    return src.type == DType::kI2_S ? "an i2_s tensor has a scale that a copy would lose" : nullptr;
  }
  if (!can_load(src.type)) return "the source type has no conversion to another type";
  if (!can_store(call.dst.type)) return "the result type cannot be written";
  if (src.type == DType::kI2_S && !is_contiguous(src)) return "an i2_s source must be contiguous";
  return nullptr;
}

const char* check_quantize(const Call& call) {
  const DType type = call.dst.type;
  const bool is_blocks = type == DType::kQ8_0 || type == DType::kQ8_1 || type == DType::kQ8_K;
  if (!is_blocks && !is_float(type)) {
    return "the result must be q8_0, q8_1, q8_K, f32, f16 or bf16";
  }
  if (!is_float(call.src[0]->type)) return "the source must be f32, f16 or bf16";
  if (!same_shape(*call.src[0], call.dst)) return "source and result differ in shape";
  return nullptr;
}

template <bool kMerge>
constexpr Kernel kernel(const char* (*check)(const Call&)) {
  return {.check = check,
          .items = items<kMerge>,
          .run = run<kMerge>,
          .grain = grain<kMerge>,
          .scratch = scratch,
          .by_rows = !kMerge};
}

}  // namespace

void register_copy(KernelTable& table) {
  table[Op::kCont] = kernel<true>(check_copy);
  table[Op::kCpy] = kernel<true>(check_copy);
  // Row by row, so that it can be chained with the steps that compute the rows.
  table[Op::kQuantize] = kernel<false>(check_quantize);
}

}  // namespace weft::WEFT_TARGET
