// LIGHTNING_INDEXER: DeepSeek's index scores, the sum over heads of relu(q . k) * weight, plus a
// mask.
#include "kernels/elements.h"
#include "kernels/layout.h"
#include "kernels/matmul/column_blocks.h"

namespace weft::WEFT_TARGET {

void register_indexer(KernelTable& table);

namespace {

// The decoder of i2_s rows does not apply the scale, which is stored behind the whole tensor.
bool can_read(DType type) { return is_float(type) || (can_decode(type) && type != DType::kI2_S); }

// Loads the cells first..first + n of k as the columns of a block [d][kColumns], and fills the
// other columns with zeros.
void load_cells(const Tensor& k, const char* data, int64_t first, int64_t n, float* row,
                float* block) {
  const int64_t d = k.ne[0];
  for (int64_t c = 0; c < kColumns; ++c) {
    if (c >= n) {
      for (int64_t i = 0; i < d; ++i) block[i * kColumns + c] = 0;
      continue;
    }
    const char* p = data + (first + c) * k.nb[2];
    if (is_quantized(k.type)) {
      table().type(k.type).to_float(p, row, d);
    } else {
      load_floats(p, k.type, k.nb[0], d, row);
    }
    for (int64_t i = 0; i < d; ++i) block[i * kColumns + c] = row[i];
  }
}

// Adds relu(scores) * weights of `n` heads to `out`; rows of scores have kColumns floats.
void add_heads(const float* scores, const char* weights, int64_t step, int64_t n, float* out) {
  for (int64_t c = 0; c < kColumns; c += kLanes) {
    vf sum = load(out + c);
    for (int64_t h = 0; h < n; ++h) {
      const vf weight = splat(load_element(weights + h * step, DType::kF32));
      sum = fma(vmax(load(scores + h * kColumns + c), vf{}), weight, sum);
    }
    store(out + c, sum);
  }
}

void add_mask(const Tensor& mask, const char* p, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] += load_element(p + i * mask.nb[0], mask.type);
}

// The shapes are q [d, heads, tokens, streams], k [d, 1, cells, streams], weights
// [heads, tokens, 1, streams], mask [cells, tokens, 1, streams or a divisor of them], dst
// [cells, tokens, 1, streams]. An item is kColumns cells of one stream, for all tokens.
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const Tensor& weights = *call.src[2];
  const Tensor& mask = *call.src[3];
  const Tensor& dst = call.dst;
  const int64_t d = q.ne[0], n_head = q.ne[1];
  auto* block = reinterpret_cast<float*>(scratch);
  float* row = block + d * kColumns;
  float* heads = row + d;  // kPanelRows rows of q
  const int64_t blocks = (dst.ne[0] + kColumns - 1) / kColumns;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t stream = item / blocks;
    const int64_t first = (item - stream * blocks) * kColumns;
    const int64_t n = min64(kColumns, dst.ne[0] - first);
    load_cells(k, k.data + stream * k.nb[3], first, n, row, block);
    for (int64_t token = 0; token < dst.ne[1]; ++token) {
      float out[kColumns] = {};
      const char* w = weights.data + token * weights.nb[1] + stream * weights.nb[3];
      for (int64_t h = 0; h < n_head; h += kPanelRows) {
        const int64_t count = min64(kPanelRows, n_head - h);
        for (int64_t i = 0; i < kPanelRows; ++i) {
          const char* p =
              q.data + min64(h + i, n_head - 1) * q.nb[1] + token * q.nb[2] + stream * q.nb[3];
          load_floats(p, q.type, q.nb[0], d, heads + i * d);
        }
        float scores[kPanelRows * kColumns] = {};
        multiply_block({heads, d, 1}, block, d, kColumns, scores);
        add_heads(scores, w + h * weights.nb[0], weights.nb[0], count, out);
      }
      const char* m =
          mask.data + token * mask.nb[1] + stream % mask.ne[3] * mask.nb[3] + first * mask.nb[0];
      add_mask(mask, m, n, out);
      char* to = dst.data + token * dst.nb[1] + stream * dst.nb[3] + first * dst.nb[0];
      store_floats(out, n, to, dst.type, dst.nb[0]);
    }
  }
}

const char* check(const Call& call) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const Tensor& weights = *call.src[2];
  const Tensor& mask = *call.src[3];
  const Tensor& dst = call.dst;
  if (q.type != DType::kF32 || weights.type != DType::kF32 || dst.type != DType::kF32) {
    return "queries, weights and result must be f32";
  }
  if (!is_float(mask.type)) return "needs an f32, f16 or bf16 mask";
  if (!can_read(k.type)) return "cannot decode keys of this type";
  const int64_t n_tokens = q.ne[2], n_streams = q.ne[3];
  if (!has_shape(k, q.ne[0], 1, dst.ne[0], n_streams)) return "keys must be [d, 1, cells, streams]";
  if (!has_shape(weights, q.ne[1], n_tokens, 1, n_streams)) {
    return "weights must be [heads, tokens, 1, streams]";
  }
  if (mask.ne[3] < 1 || !has_shape(mask, dst.ne[0], n_tokens, 1, mask.ne[3])) {
    return "the mask must be [cells, tokens]";
  }
  if (!has_shape(dst, dst.ne[0], n_tokens, 1, n_streams)) {
    return "the result must be [cells, tokens, 1, streams]";
  }
  return nullptr;
}

int64_t items(const Call& call) {
  return (call.dst.ne[0] + kColumns - 1) / kColumns * call.dst.ne[3];
}

int64_t grain(const Call& call) {
  const Tensor& q = *call.src[0];
  return work_grain(kColumns * q.ne[0] * q.ne[1] * q.ne[2]);
}

size_t scratch_bytes(const Call& call) {
  const int64_t d = call.src[0]->ne[0];
  return static_cast<size_t>(d * (kColumns + 1 + kPanelRows)) * sizeof(float);
}

}  // namespace

void register_indexer(KernelTable& table) {
  table[Op::kLightningIndexer] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
