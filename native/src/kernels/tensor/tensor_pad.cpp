// PAD_ND: more or fewer elements on either side of each dimension.
#include "kernels/copy/copy_rows.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_pad(KernelTable& table);

namespace {

using enum PadNdSlot;
using enum PadMode;

constexpr int64_t kFew = 16;

// Where the element that stands at `i` comes from, along a dimension of `n`; -1: from nowhere.
int64_t source_of(int64_t i, int64_t n, PadMode mode) {
  if (i >= 0 && i < n) return i;
  switch (mode) {
    case kConstant:
      return -1;
    case kReflect: {
      const int64_t near = i < 0 ? -i : 2 * (n - 1) - i;  // without a division
      if (near >= 0 && near < n) return near;
      if (n == 1) return 0;
      const int64_t period = 2 * (n - 1);
      const int64_t at = ((i % period) + period) % period;
      return at < n ? at : period - at;
    }
    case kReplicate:
      return i < 0 ? 0 : n - 1;
    default: {
      const int64_t near = i < 0 ? i + n : i - n;
      return near >= 0 && near < n ? near : ((i % n) + n) % n;
    }
  }
}

// The bytes of the constant.
struct Constant {
  char bytes[8];

  Constant(double value, DType type) {
    if (is_float(type)) {
      store_element(bytes, type, static_cast<float>(value));
    } else if (type == DType::kF64) {
      std::memcpy(bytes, &value, 8);
    } else {
      const auto whole = static_cast<int64_t>(value);
      store_numbers(&whole, 1, bytes, type, 0);
    }
  }
};

// `n` elements, a few of them without a call.
template <typename T>
void move(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n) {
  constexpr int64_t kSize = sizeof(T);
  if (from_step != kSize || to_step != kSize) {
    return move_strided<T>(from, from_step, to, to_step, n);
  }
  if (n > kFew) {
    std::memcpy(to, from, static_cast<size_t>(n * kSize));
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * kSize, from + i * kSize, kSize);
}

template <typename T>
void repeat(T value, char* to, int64_t step, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * step, &value, sizeof value);
}

template <typename T>
void pad(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const auto mode = call.as<PadMode>(kMode);
  const Constant constant(call.number(kValue), x.type);
  T fill;
  std::memcpy(&fill, constant.bytes, sizeof fill);
  const auto work = [&](const Piece& p) {
    const int64_t i1 = source_of(p.row.i1 - call.i(kLeft, 1), x.ne[1], mode);
    const int64_t i2 = source_of(p.row.i2 - call.i(kLeft, 2), x.ne[2], mode);
    const int64_t i3 = source_of(p.row.i3 - call.i(kLeft, 3), x.ne[3], mode);
    const bool inside = i1 >= 0 && i2 >= 0 && i3 >= 0;
    const char* row = inside ? row_data(x, {i1, i2, i3}) : nullptr;
    char* out = element(dst, p);
    // elements from .. to of the piece: those of the row that follow each other, at a time
    const auto edge = [&](int64_t from, int64_t to, int64_t start) {
      if (!inside || mode == kConstant)
        return repeat(fill, out + from * dst.nb[0], dst.nb[0], to - from);
      const int64_t n = x.ne[0];
      while (from < to) {
        const int64_t at = source_of(start + from, n, mode);
        const int64_t step = from + 1 == to ? 0 : source_of(start + from + 1, n, mode) - at;
        const int64_t run = step == 1 ? n - at : step == -1 ? at + 1 : step == 0 ? to - from : 1;
        const int64_t count = min64(run, to - from);
        move<T>(row + at * x.nb[0], step * x.nb[0], out + from * dst.nb[0], dst.nb[0], count);
        from += count;
      }
    };
    // of x: `start` is what stands at the piece's first element
    const int64_t start = p.first - call.i(kLeft);
    const int64_t from = min64(p.n, max64(0, -start));
    const int64_t to = max64(from, min64(p.n, x.ne[0] - start));
    edge(0, from, start);
    if (inside && to > from) {
      move<T>(row + (start + from) * x.nb[0], x.nb[0], out + from * dst.nb[0], dst.nb[0],
              to - from);
    } else {
      edge(from, to, start);
    }
    edge(to, p.n, start);
  };
  if (row_items(dst) != 1) return for_pieces(dst, begin, end, work);
  for (int64_t row = begin; row < end; ++row) work(Piece{row_index(dst, row), 0, dst.ne[0]});
}

void run(const Call& call, int64_t begin, int64_t end, char*) {
  switch (element_size(call.dst.type)) {
    case 1:
      return pad<uint8_t>(call, begin, end);
    case 2:
      return pad<uint16_t>(call, begin, end);
    case 4:
      return pad<uint32_t>(call, begin, end);
    default:
      return pad<uint64_t>(call, begin, end);
  }
}

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  if (!call.is_one<PadMode>(kMode)) return "unknown mode";
  if (!is_element(x.type) || call.dst.type != x.type) return "needs x and a result of one type";
  for (int d = 0; d < 4; ++d) {
    const int64_t left = call.i(kLeft, d), right = call.i(kRight, d);
    constexpr int64_t kMost = int64_t{1} << 40;
    if (left > kMost || left < -kMost || right > kMost || right < -kMost) return "no such padding";
    if (call.dst.ne[d] != x.ne[d] + left + right) return "the result has other sizes";
    if (x.ne[d] == 0 && call.as<PadMode>(kMode) != kConstant) return "there is nothing to repeat";
  }
  return nullptr;
}

}  // namespace

void register_tensor_pad(KernelTable& table) {
  table[Op::kPadNd] = {.check = check, .items = element_items, .run = run, .grain = element_grain};
}

}  // namespace weft::WEFT_TARGET
