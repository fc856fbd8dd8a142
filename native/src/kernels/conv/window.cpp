// WIN_PART, WIN_UNPART: an image cut into square windows, and back. GET_REL_POS: rows by distance.
//
// All of them copy rows of elements of any type without blocks.
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_window(KernelTable& table);

namespace {

int64_t windows_across(int64_t width, int64_t w) { return (width + w - 1) / w; }

void copy_row(const Tensor& src, const char* from, const Tensor& dst, char* to) {
  const auto size = static_cast<size_t>(element_size(dst.type));
  if (src.nb[0] == dst.nb[0] && dst.nb[0] == element_size(dst.type)) {
    std::memcpy(to, from, size * static_cast<size_t>(dst.ne[0]));
    return;
  }
  for (int64_t i = 0; i < dst.ne[0]; ++i) {
    std::memcpy(to + i * dst.nb[0], from + i * src.nb[0], size);
  }
}

void zero_row(const Tensor& dst, char* to) {
  for (int64_t i = 0; i < dst.ne[0]; ++i) {
    std::memset(to + i * dst.nb[0], 0, static_cast<size_t>(element_size(dst.type)));
  }
}

// Image [n, width, height] to [n, w, w, window]; zeros beyond the edges.
void run_part(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& src = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t w = call.i(WinSlot::kW);
  const int64_t across = windows_across(src.ne[1], w);
  for (int64_t row = begin; row < end; ++row) {
    const Index to = row_index(dst, row);
    const int64_t x = to.i3 % across * w + to.i1;
    const int64_t y = to.i3 / across * w + to.i2;
    if (x < src.ne[1] && y < src.ne[2]) {
      copy_row(src, row_data(src, {x, y, 0}), dst, row_data(dst, to));
    } else {
      zero_row(dst, row_data(dst, to));
    }
  }
}

// Windows [n, w, w, window] to an image [n, width, height].
void run_unpart(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& src = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t w = call.i(WinSlot::kW);
  const int64_t across = windows_across(dst.ne[1], w);
  for (int64_t row = begin; row < end; ++row) {
    const Index to = row_index(dst, row);
    const Index from = {to.i1 % w, to.i2 % w, to.i2 / w * across + to.i1 / w};
    copy_row(src, row_data(src, from), dst, row_data(dst, to));
  }
}

// Rows [n, 2 k - 1] to [n, k, q]: row (q, k) is that of the distance q - k.
void run_rel_pos(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& src = *call.src[0];
  const Tensor& dst = call.dst;
  for (int64_t row = begin; row < end; ++row) {
    const Index to = row_index(dst, row);
    const int64_t from = to.i2 - to.i1 + dst.ne[1] - 1;
    copy_row(src, row_data(src, {from, 0, 0}), dst, row_data(dst, to));
  }
}

const char* check_rows(const Call& call) {
  if (call.src[0]->type != call.dst.type) return "result and source differ in type";
  if (is_quantized(call.dst.type)) return "does not move blocks";
  if (call.src[0]->ne[0] != call.dst.ne[0]) return "rows of result and source differ in length";
  return nullptr;
}

const char* check_windows(const Call& call, const Tensor& image, const Tensor& windows) {
  if (!is_count(call, WinSlot::kW, 1)) return "the window must be 1 or more";
  const int64_t w = call.i(WinSlot::kW);
  if (image.ne[3] != 1 || windows.ne[1] != w || windows.ne[2] != w ||
      windows.ne[3] != windows_across(image.ne[1], w) * windows_across(image.ne[2], w)) {
    return "these are not the windows of the image";
  }
  return check_rows(call);
}

const char* check_part(const Call& call) { return check_windows(call, *call.src[0], call.dst); }
const char* check_unpart(const Call& call) { return check_windows(call, call.dst, *call.src[0]); }

const char* check_rel_pos(const Call& call) {
  const Tensor& dst = call.dst;
  if (dst.ne[1] != dst.ne[2] || dst.ne[3] != 1 ||
      !has_shape(*call.src[0], dst.ne[0], 2 * dst.ne[1] - 1)) {
    return "needs as many queries as keys, and a row for each distance";
  }
  return check_rows(call);
}

int64_t items(const Call& call) { return n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

}  // namespace

void register_window(KernelTable& table) {
  table[Op::kWinPart] = {.check = check_part, .items = items, .run = run_part, .grain = grain};
  table[Op::kWinUnpart] = {
      .check = check_unpart, .items = items, .run = run_unpart, .grain = grain};
  table[Op::kGetRelPos] = {
      .check = check_rel_pos, .items = items, .run = run_rel_pos, .grain = grain};
}

}  // namespace weft::WEFT_TARGET
