// DSV4_HC_COMB, DSV4_HC_PRE, DSV4_HC_POST: DeepSeek-V4's hyper-connections, which mix `hc` residual
// streams before and after each block.
#include <math.h>

#include "kernels/elements.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_hyper(KernelTable& table);

namespace {

float at(const Tensor& t, int64_t i0, int64_t i1, int64_t i2) {
  return load_element(t.data + i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2], DType::kF32);
}

// ---- COMB ---------------------------------------------------------------------------------------

// The iteration converges in tens of steps; a program that asks for more than this is broken.
constexpr int kMostIterations = 65536;

// Divides each line of hc numbers of m by its sum + eps. Line i begins at m[i * stride], and its
// numbers are `step` apart.
void normalize(float* m, int64_t hc, int64_t step, int64_t stride, float eps) {
  for (int64_t i = 0; i < hc; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < hc; ++j) sum += m[i * stride + j * step];
    for (int64_t j = 0; j < hc; ++j) m[i * stride + j * step] /= sum + eps;
  }
}

void softmax(float* m, int64_t n, float eps) {
  float top = m[0];
  for (int64_t i = 1; i < n; ++i) top = m[i] > top ? m[i] : top;
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    m[i] = expf(m[i] - top);
    sum += m[i];
  }
  for (int64_t i = 0; i < n; ++i) m[i] = m[i] / sum + eps;
}

// Sinkhorn's iteration on softmax(mixes * scale[2] + base), with the last hc * hc numbers of each
// row of mixes [(2 + hc) hc, tokens] and of base. An item is the matrix [to, from] of one token,
// computed in place.
void run_comb(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& mixes = *call.src[0];
  const Tensor& dst = call.dst;
  const float scale = at(*call.src[1], 2, 0, 0);
  const float eps = call.f(HcCombSlot::kEps);
  const int64_t n_iter = call.i(HcCombSlot::kNIter);
  const int64_t hc = dst.ne[0];
  for (int64_t token = begin; token < end; ++token) {
    auto* m = reinterpret_cast<float*>(dst.data + token * dst.nb[2]);
    for (int64_t i = 0; i < hc * hc; ++i) {
      m[i] = at(mixes, 2 * hc + i, token, 0) * scale + at(*call.src[2], 2 * hc + i, 0, 0);
    }
    for (int64_t from = 0; from < hc; ++from) softmax(m + from * hc, hc, eps);
    for (int64_t i = 0; i < n_iter; ++i) {
      if (i > 0) normalize(m, hc, 1, hc, eps);
      normalize(m, hc, hc, 1, eps);
    }
  }
}

const char* check_comb(const Call& call) {
  const Tensor& mixes = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t hc = dst.ne[0];
  if (!is_count(call, HcCombSlot::kNIter, 0) || call.i(HcCombSlot::kNIter) > kMostIterations) {
    return "the number of iterations must be 0 to 65536";
  }
  for (int i = 0; i < 3; ++i) {
    if (!is_f32_rows(*call.src[i])) return "needs f32 sources with contiguous rows";
  }
  if (!is_f32_rows(dst) || dst.nb[1] != hc * 4) return "the result must be contiguous f32";
  if (hc < 1 || dst.ne[1] != hc || dst.ne[3] != 1) return "the result must be [hc, hc, tokens]";
  if (!has_shape(mixes, (2 + hc) * hc, dst.ne[2])) {
    return "mixes must be [(2 + hc) * hc, tokens]";
  }
  if (!has_shape(*call.src[1], 3)) return "needs three scales";
  if (!has_shape(*call.src[2], (2 + hc) * hc)) return "base must be [(2 + hc) * hc]";
  return nullptr;
}

int64_t items_comb(const Call& call) { return call.dst.ne[2]; }
int64_t grain_comb(const Call& call) {
  return row_grain(call.dst.ne[0] * call.dst.ne[0] * (4 + 4 * call.i(HcCombSlot::kNIter)));
}

// ---- PRE and POST -------------------------------------------------------------------------------

// An item is at most this many elements of a token.
constexpr int64_t kStretch = 1024;

int64_t stretches(const Tensor& t) { return (t.ne[0] + kStretch - 1) / kStretch; }

// out[i] = w * x[i], or out[i] += w * x[i] when `add`.
void add_scaled(float w, const float* x, bool add, int64_t n, float* out) {
  int64_t i = 0;
  if (!add) {
    for (; i < n; ++i) out[i] = w * x[i];
    return;
  }
  for (; i + kLanes <= n; i += kLanes) store(out + i, fma(splat(w), load(x + i), load(out + i)));
  for (; i < n; ++i) out[i] += w * x[i];
}

// out[i] += x[i] * sigmoid(gate[i]).
void add_gated(const float* gate, const float* x, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, fma(load(x + i), sigmoid(load(gate + i)), load(out + i)));
  }
  if (i == n) return;
  const vf gates = sigmoid(load_part(gate + i, n - i));
  for (int64_t lane = 0; i < n; ++i, ++lane) out[i] += x[i] * gates[lane];
}

// dst [dim, tokens] = the sum over hc of x [dim, hc, tokens] * weights [hc, tokens], or of
// x * sigmoid(gate) * scale with a gate of the shape of x.
void run_pre(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& x = *call.src[0];
  const Tensor& w = *call.src[1];
  const Tensor& dst = call.dst;
  const bool gated = call.i(HcPreSlot::kGated) != 0;
  const float scale = call.f(HcPreSlot::kScale);
  const int64_t per_token = stretches(dst);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / per_token;
    const int64_t first = (item - token * per_token) * kStretch;
    const int64_t n = min64(kStretch, dst.ne[0] - first);
    auto* out = reinterpret_cast<float*>(dst.data + token * dst.nb[1]) + first;
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
    for (int64_t h = 0; h < x.ne[1]; ++h) {
      const auto* in = reinterpret_cast<const float*>(x.data + h * x.nb[1] + token * x.nb[2]);
      if (!gated) {
        add_scaled(at(w, h, token, 0), in + first, true, n, out);
        continue;
      }
      const auto* gate = reinterpret_cast<const float*>(w.data + h * w.nb[1] + token * w.nb[2]);
      add_gated(gate + first, in + first, n, out);
    }
    if (gated) {
      for (int64_t i = 0; i < n; ++i) out[i] *= scale;
    }
  }
}

const char* check_pre(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& w = *call.src[1];
  if (!is_f32_rows(x) || !is_f32_rows(w) || !is_f32_rows(call.dst)) {
    return "needs f32 with contiguous rows";
  }
  if (x.ne[3] != 1 || !has_shape(call.dst, x.ne[0], x.ne[2])) {
    return "the streams must be [dim, hc, tokens] and the result [dim, tokens]";
  }
  if (call.i(HcPreSlot::kGated) != 0) {
    return same_shape(w, x) ? nullptr : "gate and streams differ in shape";
  }
  return has_shape(w, x.ne[1], x.ne[2]) ? nullptr : "weights must be [hc, tokens]";
}

int64_t items_pre(const Call& call) { return stretches(call.dst) * call.dst.ne[1]; }

// dst [dim, hc, tokens] = x [dim, tokens] * post [hc, tokens] + residual [dim, hc, tokens]. Where
// there is a comb [to, from, tokens], it mixes the streams of the residual.
void run_post(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& x = *call.src[0];
  const Tensor& residual = *call.src[1];
  const Tensor& post = *call.src[2];
  const Tensor* comb = call.src[3];
  const Tensor& dst = call.dst;
  const int64_t hc = dst.ne[1];
  const int64_t per_token = stretches(dst);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / per_token;
    const int64_t first = (item - token * per_token) * kStretch;
    const int64_t n = min64(kStretch, dst.ne[0] - first);
    const auto* in = reinterpret_cast<const float*>(x.data + token * x.nb[1]) + first;
    for (int64_t to = 0; to < hc; ++to) {
      auto* out = reinterpret_cast<float*>(dst.data + to * dst.nb[1] + token * dst.nb[2]) + first;
      add_scaled(at(post, to, token, 0), in, false, n, out);
      for (int64_t from = 0; from < hc; ++from) {
        if (comb == nullptr && from != to) continue;
        const float weight = comb == nullptr ? 1.0f : at(*comb, to, from, token);
        const char* row = residual.data + from * residual.nb[1] + token * residual.nb[2];
        add_scaled(weight, reinterpret_cast<const float*>(row) + first, true, n, out);
      }
    }
  }
}

const char* check_post(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& residual = *call.src[1];
  const Tensor& post = *call.src[2];
  const Tensor* comb = call.src[3];
  const int64_t hc = residual.ne[1], n_tokens = residual.ne[2];
  for (int i = 0; i < 4; ++i) {
    if (call.src[i] != nullptr && !is_f32_rows(*call.src[i])) {
      return "needs f32 sources with contiguous rows";
    }
  }
  if (!is_f32_rows(call.dst)) return "the result must be f32 with contiguous rows";
  if (residual.ne[3] != 1 || !same_shape(residual, call.dst)) {
    return "residual and result must be [dim, hc, tokens]";
  }
  if (!has_shape(x, residual.ne[0], n_tokens)) return "the input must be [dim, tokens]";
  if (!has_shape(post, hc, n_tokens)) return "post must be [hc, tokens]";
  if (comb != nullptr && !has_shape(*comb, hc, hc, n_tokens)) {
    return "comb must be [hc, hc, tokens]";
  }
  return nullptr;
}

int64_t items_post(const Call& call) { return stretches(call.dst) * call.dst.ne[2]; }

int64_t grain_streams(const Call& call) {
  return row_grain(min64(kStretch, call.dst.ne[0]) * max64(1, call.src[1]->ne[1]));
}

}  // namespace

void register_hyper(KernelTable& table) {
  table[Op::kDsv4HcComb] = {
      .check = check_comb, .items = items_comb, .run = run_comb, .grain = grain_comb};
  table[Op::kDsv4HcPre] = {
      .check = check_pre, .items = items_pre, .run = run_pre, .grain = grain_streams};
  table[Op::kDsv4HcPost] = {
      .check = check_post, .items = items_post, .run = run_post, .grain = grain_streams};
}

}  // namespace weft::WEFT_TARGET
