// MUL_MAT_INT: dot products of rows of whole numbers, which wrap around.
//
// Bytes with sums of 32 bits, the products of quantized layers, are computed in tiles
// (byte_products.h); other numbers one by one.
#include "kernels/matmul/byte_products.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_matmul_whole(KernelTable& table);

namespace {

// Of elements S, added up in Sum, whose lowest bits are those of the result.
template <typename S, typename Sum>
Sum dot(const S* a, const S* b, int64_t n) {
  Sum sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  return sum;
}

// An item: the products of a row of the second source.
template <typename S, typename Sum>
void run_rows(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t n = w.ne[0];
  auto* room_w = reinterpret_cast<S*>(scratch);
  auto* room_x = room_w + n;
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(dst, item);
    const S* row = elements_at(broadcast_row(x, at), x.nb[0], n, room_x);
    char* out = row_data(dst, at);
    for (int64_t j = 0; j < dst.ne[0]; ++j) {
      const char* column = broadcast_row(w, {j, at.i2, at.i3});
      const Sum sum = dot<S, Sum>(elements_at(column, w.nb[0], n, room_w), row, n);
      const auto product = static_cast<int64_t>(sum);
      store_numbers(&product, 1, out + j * dst.nb[0], dst.type, dst.nb[0]);
    }
  }
}

#ifdef WEFT_BYTE_PRODUCTS
// An item of tiles: these many rows of the first source by these many of the second.
constexpr int64_t kTileRows = 32;
constexpr int64_t kTileColumns = 192;

int64_t n_tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }

bool in_tiles(const Call& call) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  return w.type == DType::kI8 && call.dst.type == DType::kI32 && w.nb[0] == 1 && x.nb[0] == 1 &&
         call.dst.nb[0] == 4;
}

int64_t tile_items(const Tensor& dst) {
  return n_tiles(dst.ne[0], kTileRows) * n_tiles(dst.ne[1], kTileColumns) * dst.ne[2] * dst.ne[3];
}

template <int C>
void run_columns(const int8_t* const* w, int64_t rows, const int8_t* const* x, int64_t k,
                 char* const* out) {
  int32_t minus[C];
  for (int c = 0; c < C; ++c) minus[c] = moved_by(x[c], k);
  for (int64_t r = 0; r < rows; r += kByteRows) {
    __m128i sums[C];
    byte_tile<C>(w + r, x, k, minus, sums);
    const auto bytes = static_cast<size_t>(min64(kByteRows, rows - r)) * 4;
    for (int c = 0; c < C; ++c) std::memcpy(out[c] + r * 4, &sums[c], bytes);
  }
}

#ifdef WEFT_BYTE_PANELS
static_assert(kTileRows == kPanelBytes);
constexpr int64_t kWorthAPanel = 64;  // columns for which transposing weights pays

void run_panel(const Call& call, const int8_t* const* w, int64_t rows, int64_t first, int64_t top,
               int64_t bottom, int64_t i2, int64_t i3, char* panel) {
  const Tensor& x = *call.src[1];
  __m512i minus[2];
  pack_byte_panel(w, x.ne[0], panel, minus);
  alignas(64) char spare[kPanelColumns][kTileRows * 4];
  for (int64_t column = top; column < bottom; column += kPanelColumns) {
    const int8_t* column_of[kPanelColumns];
    char* out[kPanelColumns];
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const Index at = {min64(column + c, bottom - 1), i2, i3};
      column_of[c] = reinterpret_cast<const int8_t*>(broadcast_row(x, at));
      const bool is_whole = rows == kTileRows && column + c < bottom;
      out[c] = is_whole ? row_data(call.dst, at) + first * 4 : spare[c];
    }
    byte_panel_tile(panel, column_of, x.ne[0], minus, out);
    if (rows == kTileRows) continue;
    for (int64_t c = 0; c < min64(kPanelColumns, bottom - column); ++c) {
      char* to = row_data(call.dst, {column + c, i2, i3}) + first * 4;
      std::memcpy(to, spare[c], static_cast<size_t>(rows) * 4);
    }
  }
}
#endif

void run_tiles(const Call& call, int64_t begin, int64_t end, [[maybe_unused]] char* scratch) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t across = n_tiles(dst.ne[0], kTileRows);
  const int64_t down = n_tiles(dst.ne[1], kTileColumns);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t matrix = item / (across * down);
    const int64_t i2 = matrix % dst.ne[2], i3 = matrix / dst.ne[2];
    const int64_t first = item % across * kTileRows;
    const int64_t top = item / across % down * kTileColumns;
    const int64_t rows = min64(kTileRows, dst.ne[0] - first);
    const int8_t* row_of[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) {  // what is missing repeats the last row
      const char* row = broadcast_row(w, {first + min64(r, rows - 1), i2, i3});
      row_of[r] = reinterpret_cast<const int8_t*>(row);
    }
    const int64_t bottom = min64(top + kTileColumns, dst.ne[1]);
#ifdef WEFT_BYTE_PANELS
    if (bottom - top >= kWorthAPanel && w.ne[0] % kBytesAtOnce == 0) {
      run_panel(call, row_of, rows, first, top, bottom, i2, i3, scratch);
      continue;
    }
#endif
    for (int64_t column = top; column < bottom; column += kByteColumns) {
      const int64_t n = min64(kByteColumns, bottom - column);
      const int8_t* column_of[kByteColumns];
      char* out[kByteColumns];
      for (int64_t c = 0; c < n; ++c) {
        column_of[c] = reinterpret_cast<const int8_t*>(broadcast_row(x, {column + c, i2, i3}));
        out[c] = row_data(dst, {column + c, i2, i3}) + first * 4;
      }
      if (n == kByteColumns) {
        run_columns<kByteColumns>(row_of, rows, column_of, w.ne[0], out);
      } else {
        for (int64_t c = 0; c < n; ++c) {
          run_columns<1>(row_of, rows, column_of + c, w.ne[0], out + c);
        }
      }
    }
  }
}
#else
bool in_tiles(const Call&) { return false; }
int64_t tile_items(const Tensor&) { return 0; }
void run_tiles(const Call&, int64_t, int64_t, char*) {}
#endif

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  if (in_tiles(call)) return run_tiles(call, begin, end, scratch);
  with_whole_type(call.src[0]->type, [&](auto s) {
    using S = decltype(s);
    if (call.dst.type == DType::kI64) return run_rows<S, uint64_t>(call, begin, end, scratch);
    if constexpr (sizeof(S) < 8) run_rows<S, uint32_t>(call, begin, end, scratch);
  });
}

const char* check(const Call& call) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_whole(w.type) || x.type != w.type) return "needs sources of one type of whole numbers";
  if (!is_whole(dst.type) || element_size(dst.type) < element_size(w.type)) {
    return "the result must be as wide as the sources, or wider";
  }
  if (w.ne[0] != x.ne[0]) return "the rows differ in length";
  if (dst.ne[0] != w.ne[1] || dst.ne[1] != x.ne[1]) return "a product for each pair of rows";
  for (int d = 2; d < 4; ++d) {
    if ((w.ne[d] != 1 && w.ne[d] != dst.ne[d]) || (x.ne[d] != 1 && x.ne[d] != dst.ne[d])) {
      return "matrices do not broadcast to the result";
    }
  }
  return nullptr;
}

int64_t items(const Call& call) {
  if (call.dst.ne[0] == 0) return 0;
  return in_tiles(call) ? tile_items(call.dst) : n_rows(call.dst);
}
int64_t grain(const Call& call) {
  const int64_t k = call.src[0]->ne[0];
  // a product of bytes in tiles takes a fraction of the time of another
  if (in_tiles(call)) return row_grain(min64(call.dst.ne[1], 192) * k);
  return row_grain(call.dst.ne[0] * k);
}

size_t scratch_bytes(const Call& call) {
  const int64_t rows = in_tiles(call) ? 32 : 2;  // a panel, or one row of each source
  return static_cast<size_t>(rows * call.src[0]->ne[0] * element_size(call.src[0]->type));
}

}  // namespace

void register_matmul_whole(KernelTable& table) {
  table[Op::kMulMatInt] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
