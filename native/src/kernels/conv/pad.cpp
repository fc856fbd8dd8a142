// PAD, PAD_REFLECT_1D, ROLL: elements of any plain type, moved.
#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

void register_pad(KernelTable& table);

namespace {

// `n` elements of `size` bytes from byte stride to byte stride.
void move(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n,
          int64_t size) {
  const auto bytes = static_cast<size_t>(size);
  if (from_stride == size && to_stride == size) {
    std::memcpy(to, from, static_cast<size_t>(n) * bytes);
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
}

void clear(char* to, int64_t stride, int64_t n, int64_t size) {
  for (int64_t i = 0; i < n; ++i) std::memset(to + i * stride, 0, static_cast<size_t>(size));
}

// i modulo n, never negative.
int64_t wrap(int64_t i, int64_t n) {
  const int64_t rest = i % n;
  return rest < 0 ? rest + n : rest;
}

// A row of `n` elements that repeats, from element `first` on: `count` elements of it.
void move_wrapped(const Tensor& a, const char* row, int64_t first, char* to, int64_t stride,
                  int64_t count) {
  const int64_t size = element_size(a.type);
  int64_t at = wrap(first, a.ne[0]);
  while (count > 0) {
    const int64_t part = min64(count, a.ne[0] - at);
    move(row + at * a.nb[0], a.nb[0], to, stride, part, size);
    to += part * stride;
    count -= part;
    at = 0;
  }
}

void run_pad(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t size = element_size(dst.type);
  const bool circular = call.i(PadSlot::kCircular) != 0;
  const int64_t left = call.i(PadSlot::kLeft);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    char* out = row_data(dst, index);
    Index from = {index.i1 - call.i(PadSlot::kLeft, 1), index.i2 - call.i(PadSlot::kLeft, 2),
                  index.i3 - call.i(PadSlot::kLeft, 3)};
    if (circular) {
      from = {wrap(from.i1, a.ne[1]), wrap(from.i2, a.ne[2]), wrap(from.i3, a.ne[3])};
      move_wrapped(a, row_data(a, from), -left, out, dst.nb[0], dst.ne[0]);
      continue;
    }
    const bool inside = from.i1 >= 0 && from.i1 < a.ne[1] && from.i2 >= 0 && from.i2 < a.ne[2] &&
                        from.i3 >= 0 && from.i3 < a.ne[3];
    if (!inside) {
      clear(out, dst.nb[0], dst.ne[0], size);
      continue;
    }
    clear(out, dst.nb[0], left, size);
    move(row_data(a, from), a.nb[0], out + left * dst.nb[0], dst.nb[0], a.ne[0], size);
    const int64_t right = left + a.ne[0];
    clear(out + right * dst.nb[0], dst.nb[0], dst.ne[0] - right, size);
  }
}

const char* check_type(const Call& call) {
  if (is_quantized(call.dst.type)) return "block types cannot be padded or rolled";
  return call.dst.type == call.src[0]->type ? nullptr : "result and source differ in type";
}

const char* check_pad(const Call& call) {
  if (const char* why = check_type(call)) return why;
  for (int d = 0; d < 4; ++d) {
    const int64_t n = call.src[0]->ne[d];
    const int64_t left = call.i(PadSlot::kLeft, d);
    const int64_t right = call.i(PadSlot::kRight, d);
    if (left < 0 || right < 0) return "padding must not be negative";
    if (call.dst.ne[d] != n + left + right) return "the result is not the source and its padding";
    if (n == 0 && call.i(PadSlot::kCircular) != 0) return "there is nothing to repeat";
  }
  return nullptr;
}

// ---- PAD_REFLECT_1D -----------------------------------------------------------------------------

void run_reflect(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t size = element_size(dst.type);
  const int64_t left = call.i(PadReflectSlot::kP0);
  const int64_t n = a.ne[0];
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const char* x = row_data(a, index);
    char* out = row_data(dst, index);
    move(x + left * a.nb[0], -a.nb[0], out, dst.nb[0], left, size);
    move(x, a.nb[0], out + left * dst.nb[0], dst.nb[0], n, size);
    move(x + (n - 2) * a.nb[0], -a.nb[0], out + (left + n) * dst.nb[0], dst.nb[0],
         call.i(PadReflectSlot::kP1), size);
  }
}

const char* check_reflect(const Call& call) {
  if (const char* why = check_type(call)) return why;
  const Tensor& a = *call.src[0];
  const int64_t left = call.i(PadReflectSlot::kP0);
  const int64_t right = call.i(PadReflectSlot::kP1);
  if (left < 0 || right < 0 || left >= a.ne[0] || right >= a.ne[0]) {
    return "padding must be shorter than a row";
  }
  if (call.dst.ne[0] != a.ne[0] + left + right)
    return "the result is not the source and its padding";
  for (int d = 1; d < 4; ++d) {
    if (call.dst.ne[d] != a.ne[d]) return "result and source differ in rows";
  }
  return nullptr;
}

// ---- ROLL ---------------------------------------------------------------------------------------

void run_roll(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const Index from = {wrap(index.i1 - call.i(RollSlot::kShift, 1), a.ne[1]),
                        wrap(index.i2 - call.i(RollSlot::kShift, 2), a.ne[2]),
                        wrap(index.i3 - call.i(RollSlot::kShift, 3), a.ne[3])};
    move_wrapped(a, row_data(a, from), -call.i(RollSlot::kShift), row_data(dst, index), dst.nb[0],
                 dst.ne[0]);
  }
}

const char* check_roll(const Call& call) {
  if (const char* why = check_type(call)) return why;
  return same_shape(call.dst, *call.src[0]) ? nullptr : "result and source differ in shape";
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

}  // namespace

void register_pad(KernelTable& table) {
  table[Op::kPad] = {.check = check_pad, .items = items, .run = run_pad, .grain = grain};
  table[Op::kPadReflect1d] = {
      .check = check_reflect, .items = items, .run = run_reflect, .grain = grain};
  table[Op::kRoll] = {.check = check_roll, .items = items, .run = run_roll, .grain = grain};
}

}  // namespace weft::WEFT_TARGET
