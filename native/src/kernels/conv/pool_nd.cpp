// POOL_ND: means, largest elements and their places, of windows over 1 to 3 dimensions.
//
// An item is a row of results. The rows of their windows come to one first, of sums or of largest
// elements; then, tap by tap, all results take one more element. Places take all elements in order.
// Where windows are one element wide along the row (channels that come first), the window's rows
// are taken a piece at a time.
#include "kernels/conv/conv_grid.h"
#include "kernels/numbers.h"
#include "kernels/simd/part.h"

namespace weft::WEFT_TARGET {

void register_pool_nd(KernelTable& table);

namespace {

using enum PoolNdSlot;
using enum PoolKind;

// A window along one axis: places begin, begin + step ... below end; `length` with padding.
struct Window {
  int64_t begin, end, step, length;

  int64_t count() const { return begin < end ? (end - begin + step - 1) / step : 0; }
};

struct Grid {
  Axis axes[3];
  int dims;
  bool adaptive;

  explicit Grid(const Call& call)
      : dims(static_cast<int>(call.i(kDims))), adaptive(call.i(kAdaptive) != 0) {
    for (int d = 0; d < dims; ++d) {
      Axis& a = axes[d];
      a.in = call.src[0]->ne[d];
      a.out = call.dst.ne[d];
      a.taps = call.i(kKernel, d);
      a.stride = call.i(kStride, d);
      a.padding = call.i(kPadding, d);
      a.dilation = call.i(kDilation, d);
      a.step = call.src[0]->nb[d];
    }
  }

  // Whether a result lies where the only element of its window along the row does.
  bool is_whole_row() const {
    const Axis& a = axes[0];
    return !adaptive ? a.taps == 1 && a.stride == 1 && a.padding == 0 : a.in == a.out;
  }

  // Outputs whose windows lie inside the data.
  Range whole(int d) const {
    const Axis& a = axes[d];
    const Range first = inside(a.out, a.stride, -a.padding, a.in);
    const Range last = inside(a.out, a.stride, a.offset(a.taps - 1), a.in);
    return {max64(first.begin, last.begin), min64(first.end, last.end)};
  }

  Window window(int d, int64_t o) const {
    const Axis& a = axes[d];
    if (adaptive) {
      const int64_t begin = o * a.in / a.out, end = ((o + 1) * a.in + a.out - 1) / a.out;
      return {begin, end, 1, end - begin};
    }
    const int64_t first = o * a.stride - a.padding;
    const int64_t last = first + (a.taps - 1) * a.dilation + 1;
    const int64_t skipped = first < 0 ? (-first + a.dilation - 1) / a.dilation * a.dilation : 0;
    return {first + skipped, min64(last, a.in), a.dilation, min64(last, a.in + a.padding) - first};
  }
};

// The windows of a row of results along the other axes, and where its elements lie.
struct Row {
  Window y, z;
  const char* x;  // of the channel
  char* out;
};

Row row_of(const Call& call, const Grid& g, int64_t item) {
  const Index at = row_index(call.dst, item);
  Index from = at;
  Row row = {{0, 1, 1, 1}, {0, 1, 1, 1}, nullptr, row_data(call.dst, at)};
  if (g.dims > 1) {
    row.y = g.window(1, at.i1);
    from.i1 = 0;
  }
  if (g.dims > 2) {
    row.z = g.window(2, at.i2);
    from.i2 = 0;
  }
  row.x = row_data(*call.src[0], from);
  return row;
}

// The results of a row so far. Elements are computed with T.
template <typename T>
struct Results {
  T* values;
  int64_t* places;
};

template <PoolKind kKind_, typename T>
void take(const Results<T>& r, int64_t o, T v, int64_t place) {
  if constexpr (kKind_ == kAvg) {
    r.values[o] += v;
  } else if constexpr (kKind_ == kMax || kKind_ == kMaxFinite) {
    r.values[o] = v > r.values[o] || v != v ? v : r.values[o];
  } else {
    if (r.places[o] < 0 || v > r.values[o] || v != v) {
      r.values[o] = v;
      r.places[o] = place;
    }
  }
}

// In several sums at a time.
template <typename T>
T sum_of(const T* x, int64_t n) {
  T part[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) part[j] += x[i + j];
  }
  for (int j = 0; i + j < n; ++j) part[j] += x[i + j];
  T all = 0;
  for (T p : part) all += p;
  return all;
}

// One row of elements, number `first` of the channel's on.
template <PoolKind kKind_, typename T>
void take_row(const Grid& g, const T* x, int64_t first, const Results<T>& r) {
  const Axis& a = g.axes[0];
  if (g.adaptive) {
    for (int64_t o = 0; o < a.out; ++o) {
      const Window w = g.window(0, o);
      if constexpr (kKind_ == kAvg) {
        r.values[o] += sum_of(x + w.begin, w.end - w.begin);
        continue;
      }
      for (int64_t i = w.begin; i < w.end; ++i) take<kKind_>(r, o, x[i], first + i);
    }
    return;
  }
  // taps that meet the data at all
  const int64_t last = min64(a.taps, (a.in - 1 + a.padding) / a.dilation + 1);
  const int64_t reach = a.padding - (a.out - 1) * a.stride;
  for (int64_t k = reach > 0 ? reach / a.dilation : 0; k < last; ++k) {
    const int64_t offset = a.offset(k);
    const Range seen = inside(a.out, a.stride, offset, a.in);
    if (a.stride == 1) {
      for (int64_t o = seen.begin; o < seen.end; ++o) {
        take<kKind_>(r, o, x[o + offset], first + o + offset);
      }
      continue;
    }
    for (int64_t o = seen.begin; o < seen.end; ++o) {
      const int64_t i = o * a.stride + offset;
      take<kKind_>(r, o, x[i], first + i);
    }
  }
}

// The value that the maximum of a window begins with.
constexpr float kLowest = -3.402823466e+38f;
template <PoolKind kKind_>
float start_of() {
  return kKind_ == kAvg ? 0.0f : kKind_ == kMaxFinite ? kLowest : -__builtin_inff();
}

// Rows of a window come to one, of sums or of the largest elements; a NaN stays.
template <PoolKind kKind_, typename T>
void fold_row(const T* x, int64_t n, bool first, T* folded) {
  if (first) {
    for (int64_t i = 0; i < n; ++i) folded[i] = x[i];
  } else if (kKind_ == kAvg) {
    for (int64_t i = 0; i < n; ++i) folded[i] += x[i];
  } else {
    for (int64_t i = 0; i < n; ++i) {
      folded[i] = x[i] > folded[i] || x[i] != x[i] ? x[i] : folded[i];
    }
  }
}

template <PoolKind kKind_, typename T>
void pool_row(const Call& call, const Grid& g, const Row& row, const Results<T>& r, T* buffer) {
  const Axis& a = g.axes[0];
  const T start = sizeof(T) == 4 ? static_cast<T>(start_of<kKind_>()) : static_cast<T>(INT64_MIN);
  for (int64_t o = 0; o < a.out; ++o) r.values[o] = start;
  for (int64_t o = 0; o < a.out; ++o) r.places[o] = -1;
  const bool folds = kKind_ != kMaxIndex && row.y.count() * row.z.count() > 1;
  T* folded = buffer + a.in;
  bool first = true;
  for (int64_t z = row.z.begin; z < row.z.end; z += row.z.step) {
    for (int64_t y = row.y.begin; y < row.y.end; y += row.y.step) {
      const char* p = row.x + z * g.axes[2].step + y * g.axes[1].step;
      const T* x = numbers_at(p, call.src[0]->type, a.step, a.in, buffer);
      if (folds) {
        fold_row<kKind_>(x, a.in, first, folded);
        first = false;
      } else {
        take_row<kKind_>(g, x, (z * g.axes[1].in + y) * a.in, r);
      }
    }
  }
  if (folds) take_row<kKind_>(g, static_cast<const T*>(folded), 0, r);
  if constexpr (kKind_ == kAvg) {
    const int64_t others =
        call.i(kCountIncludePad) != 0 ? row.y.length * row.z.length : row.y.count() * row.z.count();
    const int64_t divisor = call.i(kDivisor);
    // outputs whose windows lie inside, and how many elements those have
    const Range whole = g.adaptive ? Range{0, 0} : g.whole(0);
    const auto size = static_cast<T>(divisor != 0 ? divisor : max64(1, others * a.taps));
    for (int64_t o = 0; o < a.out; ++o) {
      if (divisor != 0 || (o >= whole.begin && o < whole.end)) {
        r.values[o] /= size;
        continue;
      }
      const Window w = g.window(0, o);
      const int64_t n = others * (call.i(kCountIncludePad) != 0 ? w.length : w.count());
      r.values[o] /= static_cast<T>(max64(1, n));
    }
  }
}

constexpr int kPixel = 4;  // vectors of results that are kept in registers

// Results `first` on of windows one element wide, kV vectors or, with kPart, `n` of them.
template <PoolKind kKind_, int kV, bool kPart>
void pool_piece(const Grid& g, const Row& row, int64_t first, int64_t n, vf size) {
  const auto get = [n](const float* p) { return kPart ? load_part(p, n) : load(p); };
  vf best[kV];
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) best[v] = splat(start_of<kKind_>());
  for (int64_t z = row.z.begin; z < row.z.end; z += row.z.step) {
    for (int64_t y = row.y.begin; y < row.y.end; y += row.y.step) {
      const char* p = row.x + z * g.axes[2].step + y * g.axes[1].step;
      const float* x = reinterpret_cast<const float*>(p) + first;
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        const vf value = get(x + v * kLanes);
        if constexpr (kKind_ == kAvg) {
          best[v] += value;
        } else {
          const vf larger = value > best[v] ? value : best[v];
          best[v] = value != value ? value : larger;
        }
      }
    }
  }
  float* out = reinterpret_cast<float*>(row.out) + first;
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) {
    const vf value = kKind_ == kAvg ? best[v] / size : best[v];
    if constexpr (kPart) {
      store_part(out, value, n);
    } else {
      store(out + v * kLanes, value);
    }
  }
}

// A row of results of windows one element wide: the rows that they see, in the order of pool_row.
template <PoolKind kKind_>
void pool_pixel(const Call& call, const Grid& g, const Row& row) {
  const int64_t n = g.axes[0].out;
  const bool padded = call.i(kCountIncludePad) != 0;
  const int64_t all = padded ? row.y.length * row.z.length : row.y.count() * row.z.count();
  const int64_t divisor = call.i(kDivisor) != 0 ? call.i(kDivisor) : max64(1, all);
  const vf size = splat(static_cast<float>(divisor));
  int64_t i = 0;
  for (; i + kPixel * kLanes <= n; i += kPixel * kLanes) {
    pool_piece<kKind_, kPixel, false>(g, row, i, kLanes, size);
  }
  for (; i + kLanes <= n; i += kLanes) pool_piece<kKind_, 1, false>(g, row, i, kLanes, size);
  if (i < n) pool_piece<kKind_, 1, true>(g, row, i, n - i, size);
}

// Whether pool_pixel can be it.
bool is_pixel(const Call& call, const Grid& g) {
  const Tensor& x = *call.src[0];
  return g.is_whole_row() && lies_as<float>(x.type, x.nb[0]) &&
         lies_as<float>(call.dst.type, call.dst.nb[0]);
}

template <PoolKind kKind_, typename T>
void run_of(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Grid g(call);
  if constexpr (kKind_ != kMaxIndex && sizeof(T) == sizeof(float)) {
    if (is_pixel(call, g)) {
      for (int64_t item = begin; item < end; ++item) {
        pool_pixel<kKind_>(call, g, row_of(call, g, item));
      }
      return;
    }
  }
  const int64_t out = g.axes[0].out;
  auto* places = reinterpret_cast<int64_t*>(scratch);
  auto* values = reinterpret_cast<T*>(places + out);
  T* buffer = values + out;
  for (int64_t item = begin; item < end; ++item) {
    const Row row = row_of(call, g, item);
    pool_row<kKind_, T>(call, g, row, {values, places}, buffer);
    if (kKind_ == kMaxIndex) {
      store_numbers(places, out, row.out, call.dst.type, call.dst.nb[0]);
    } else {
      store_numbers(values, out, row.out, call.dst.type, call.dst.nb[0]);
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const bool floats = is_float(call.src[0]->type);
  switch (call.as<PoolKind>(kKind)) {
    case kAvg:
      return run_of<kAvg, float>(call, begin, end, scratch);
    case kMax:
      return floats ? run_of<kMax, float>(call, begin, end, scratch)
                    : run_of<kMax, int64_t>(call, begin, end, scratch);
    case kMaxFinite:
      return run_of<kMaxFinite, float>(call, begin, end, scratch);
    default:
      return floats ? run_of<kMaxIndex, float>(call, begin, end, scratch)
                    : run_of<kMaxIndex, int64_t>(call, begin, end, scratch);
  }
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }

int64_t grain(const Call& call) {
  const Grid g(call);
  int64_t taps = 1;
  for (const Axis& a : g.axes) taps *= g.adaptive ? a.in / max64(1, a.out) + 1 : a.taps;
  return row_grain(call.dst.ne[0] * taps);
}

size_t scratch_bytes(const Call& call) {
  return static_cast<size_t>(2 * (call.dst.ne[0] + call.src[0]->ne[0])) * sizeof(int64_t);
}

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  if (!call.is_one<PoolKind>(kKind) || call.i(kDims) < 1 || call.i(kDims) > 3) {
    return "unknown kind, or no 1 to 3 dimensions";
  }
  const auto dims = static_cast<int>(call.i(kDims));
  if (!steps_are_legal<PoolNdSlot>(call, dims)) return kBadSteps;
  const auto kind = call.as<PoolKind>(kKind);
  if (!(kind == kAvg || kind == kMaxFinite ? is_float(x.type) : is_number(x.type))) {
    return "averages are of floats, maxima of numbers";
  }
  const bool fits = kind == kMaxIndex  ? call.dst.type == DType::kI64
                    : is_float(x.type) ? is_float(call.dst.type)
                                       : call.dst.type == x.type;
  if (!fits) return "the result has another type";
  for (int d = 0; d < dims; ++d) {
    if (!is_count(call, kKernel, 1, d)) return "a window has one place at least";
    if (x.ne[d] == 0 && call.dst.ne[d] != 0) return "there is nothing to pool";
  }
  for (int d = dims; d < 4; ++d) {
    if (call.dst.ne[d] != x.ne[d]) return "result and source differ in channels or batches";
  }
  return nullptr;
}

}  // namespace

void register_pool_nd(KernelTable& table) {
  table[Op::kPoolNd] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
