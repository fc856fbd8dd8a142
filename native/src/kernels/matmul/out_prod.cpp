// OUT_PROD: dst[i3, i2, n, m] = sum over k of src0[.., k, m] * src1[i3, i2, k, n]; consecutive
// batches of src1 share one of src0.
//
// The rows of src0 lie as a float panel wants them, so an item is a run of kSpan columns of src0,
// decoded kDepth rows at a time.
#include "kernels/matmul/matmul_engine.h"
#include "kernels/matmul/matmul_f32.h"

namespace weft::WEFT_TARGET {

void register_out_prod(KernelTable& table);

namespace {

constexpr int64_t kSpan = 256;  // whole blocks of every type, whole panels of every target

int64_t spans(const Call& call) { return (call.dst.ne[0] + kSpan - 1) / kSpan; }

struct Buffers {
  float* rows;   // [kDepth][kSpan]
  float* panel;  // [kDepth][kPanelFloats]
  float* tile;
  float* out;

  explicit Buffers(Arena& arena)
      : rows(arena.take<float>(kDepth * kSpan)),
        panel(arena.take<float>(kDepth * kPanelFloats)),
        tile(arena.take<float>(kTileFloats * kTileStride)),
        out(arena.take<float>(kTileFloats * kPanelFloats)) {}
};

// dst rows of one matrix, columns first..first+n, += the products of k rows start..start+deep.
void add_products(const Call& call, Index batch, int64_t first, int64_t n, int64_t start,
                  int64_t deep, float scale, const Buffers& b) {
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  for (int64_t c = 0; c < dst.ne[1]; c += kTileFloats) {
    const int64_t columns = min64(kTileFloats, dst.ne[1] - c);
    for (int64_t k = 0; k < deep; ++k) {
      const char* row = row_data(x, {start + k, batch.i2, batch.i3});
      for (int64_t i = 0; i < columns; ++i) {
        b.tile[i * kTileStride + k] = load_element(row + (c + i) * x.nb[0], x.type);
      }
    }
    for (int64_t at = 0; at < n; at += kPanelFloats) {
      for (int64_t k = 0; k < deep; ++k) {
        std::memcpy(b.panel + k * kPanelFloats, b.rows + k * kSpan + at, kPanelFloats * 4);
      }
      multiply_columns_f32(b.panel, b.tile, deep, columns, b.out);
      for (int64_t i = 0; i < columns; ++i) {
        auto* out = reinterpret_cast<float*>(row_data(dst, {c + i, batch.i2, batch.i3}));
        put_rows(b.out + i * kPanelFloats, min64(kPanelFloats, n - at), scale, true,
                 out + first + at);
      }
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& w = *call.src[0];
  const Tensor& dst = call.dst;
  const float scale = tensor_scale(w);
  Arena arena(scratch);
  const Buffers buffers(arena);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t matrix = item / spans(call);
    const int64_t first = (item - matrix * spans(call)) * kSpan;
    const int64_t n = min64(kSpan, dst.ne[0] - first);
    const Index batch = {0, matrix % dst.ne[2], matrix / dst.ne[2]};
    const int64_t w2 = batch.i2 / (dst.ne[2] / w.ne[2]);
    const int64_t w3 = batch.i3 / (dst.ne[3] / w.ne[3]);
    for (int64_t c = 0; c < dst.ne[1]; ++c) {
      auto* out = reinterpret_cast<float*>(row_data(dst, {c, batch.i2, batch.i3}));
      std::memset(out + first, 0, static_cast<size_t>(n) * 4);
    }
    for (int64_t start = 0; start < w.ne[1]; start += kDepth) {
      const int64_t deep = min64(kDepth, w.ne[1] - start);
      for (int64_t k = 0; k < deep; ++k) {
        load_range(w, row_data(w, {start + k, w2, w3}), first, n, 1.0f, buffers.rows + k * kSpan);
        // panels are whole: what lies beyond the last column must be numbers
        for (int64_t i = n; i < kSpan; ++i) buffers.rows[k * kSpan + i] = 0;
      }
      add_products(call, batch, first, n, start, deep, scale, buffers);
    }
  }
}

int64_t items(const Call& call) {
  return n_elements(call.dst) == 0 ? 0 : spans(call) * call.dst.ne[2] * call.dst.ne[3];
}

size_t scratch(const Call&) {
  Arena arena(nullptr);
  const Buffers buffers(arena);
  return arena.used();
}

const char* check(const Call& call) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  if (table().type(w.type).to_float == nullptr) return "the first source has no decoder";
  if (w.type == DType::kI2_S && !is_contiguous(w)) return "i2_s weights must be a whole tensor";
  if (!is_float(x.type)) return "the second source must be f32, f16 or bf16";
  if (dst.type != DType::kF32 || dst.nb[0] != 4) return "the result must be f32 rows";
  if (w.ne[1] != x.ne[1]) return "the sources differ in rows";
  for (int d = 2; d < 4; ++d) {
    if (w.ne[d] == 0 ? x.ne[d] != 0 : x.ne[d] % w.ne[d] != 0) {
      return "the batches of the first source do not repeat to those of the second";
    }
  }
  if (dst.ne[0] != w.ne[0] || dst.ne[1] != x.ne[0] || dst.ne[2] != x.ne[2] ||
      dst.ne[3] != x.ne[3]) {
    return "the result has not the shape of the product";
  }
  return nullptr;
}

}  // namespace

void register_out_prod(KernelTable& table) {
  table[Op::kOutProd] = {.check = check, .items = items, .run = run, .scratch = scratch};
}

}  // namespace weft::WEFT_TARGET
