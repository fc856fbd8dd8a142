// Encoders of the blocks of 32 elements with one scale for files, and of types whose converters
// within a program differ from those of files. Source: quantize_q4_0 and its like, and
// quantize_row_q8_0_ref, in ggml-quants.c.
#include "kernels/encode/requantize.h"
#include "kernels/encode/search.h"

namespace weft::WEFT_TARGET {

void register_encode_blocks(KernelTable& table);

namespace {

// The mean square of a row, which weights depend on.
float mean_square(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum / static_cast<float>(n);
}

void pack_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = low8((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

void pack_fifth_bits(const uint8_t* codes, uint8_t* qh) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
  std::memcpy(qh, &bits, 4);
}

// A weighted block: kHalf levels around zero, or (kHalf 0) kTop + 1 above a minimum.
template <typename Block, int kHalf, int kTop>
void encode_weighted(const Group<Block, 32>& g, vf sigma2) {
  Tile<32> x;
  Tile<32> importance;
  x.fill(g.x);
  importance.fill(g.weights);
  vf weights[32];
  weigh(x.at, importance.at, sigma2, 32, weights);
  LaneFit fit;
  if constexpr (kHalf != 0) {
    fit = fit_signed<32>(x.at, weights, kHalf);
  } else {
    fit = fit_lanes<32, false>(x.at, weights, {kTop, -0.9f, 0.05f, 36});
  }
  for (int lane = 0; lane < g.n; ++lane) {
    Block& b = g.out[lane];
    b.d = float_to_half(fit.scale[lane]);
    uint8_t codes[32];
    if (fit.zero[lane]) {
      std::memset(codes, 0, 32);
    } else {
      multiply_codes<32>(g.x[lane], fit.inverse[lane], fit.low[lane], -kHalf,
                         kHalf != 0 ? kHalf - 1 : kTop, codes);
    }
    if constexpr (kHalf == 0) b.m = float_to_half(-fit.offset[lane]);
    if constexpr (requires { b.qh; }) pack_fifth_bits(codes, b.qh);
    pack_nibbles(codes, b.qs);
  }
}

// Codes x * inverse + offset of one block, cut to integers, of which a byte is kept.
template <int kMost>
void cut_codes(const float* x, float from, float inverse, float offset, uint8_t* codes) {
  for (int i = 0; i < 32; i += kLanes) {
    const vf scaled = (load(x + i) - splat(from)) * splat(inverse) + splat(offset);
    // As in the reference, a code is a signed byte before it is limited.
    vi code = __builtin_convertvector(scaled, vi) << 24 >> 24;
    if constexpr (kMost != 0) code = least(code, splat_int(kMost));
    const vbytes bytes = __builtin_convertvector(code & 255, vbytes);
    std::memcpy(codes + i, &bytes, sizeof bytes);
  }
}

// Without weights: the largest value has the last code, and no others are tried.
template <typename Block, int kHalf, int kTop>
void encode_plain(const Group<Block, 32>& g) {
  Tile<32> x;
  x.fill(g.x);
  vf d;
  vf low = {};
  if constexpr (kHalf != 0) {
    d = find_peak(x.at, 32).value / splat(static_cast<float>(-kHalf));
  } else {
    low = x.at[0];
    vf high = x.at[0];
    for (int i = 1; i < 32; ++i) {
      low = x.at[i] < low ? x.at[i] : low;
      high = x.at[i] > high ? x.at[i] : high;
    }
    d = (high - low) / splat(static_cast<float>(kTop));
  }
  const vf inverse = d != vf{} ? splat(1.0f) / d : vf{};
  for (int lane = 0; lane < g.n; ++lane) {
    Block& b = g.out[lane];
    b.d = float_to_half(d[lane]);
    uint8_t codes[32];
    constexpr float kOffset = static_cast<float>(kHalf) + 0.5f;
    constexpr int kMost = kHalf != 0 ? 2 * kHalf - 1 : kTop == 15 ? 15 : 0;
    cut_codes<kMost>(g.x[lane], low[lane], inverse[lane], kOffset, codes);
    if constexpr (kHalf == 0) b.m = float_to_half(low[lane]);
    if constexpr (requires { b.qh; }) pack_fifth_bits(codes, b.qh);
    pack_nibbles(codes, b.qs);
  }
}

// With weights the error of a block depends on the whole row.
template <typename Block, int kHalf, int kTop>
void encode_rows(const EncodeRows& rows) {
  if (rows.weights == nullptr) {
    by_groups<Block, 32>(rows, encode_plain<Block, kHalf, kTop>);
    return;
  }
  const int64_t per_row = rows.ne0 / 32;
  float sigmas[kLanes];
  int64_t first = 0;
  int64_t measured = -1;
  float sigma2 = 0;
  const auto encode = [&](const Group<Block, 32>& g) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = (first + (lane < g.n ? lane : g.n - 1)) / per_row;
      if (row != measured) {
        sigma2 = mean_square(rows.src + row * rows.ne0, rows.ne0);
        measured = row;
      }
      sigmas[lane] = sigma2;
    }
    first += kLanes;
    encode_weighted<Block, kHalf, kTop>(g, load(sigmas));
  };
  by_groups<Block, 32>(rows, encode);
}

void encode_q8_0(const EncodeRows& rows) {
  auto* b = static_cast<BlockQ8_0*>(rows.dst);
  const float* x = rows.src;
  for (int64_t i = 0; i < rows.n_rows * rows.ne0; i += 32, x += 32, ++b) {
    const float d = max_magnitude(x, 32) / 127.0f;
    const vf inverse = splat(reciprocal(d));
    b->d = float_to_half(d);
    for (int j = 0; j < 32; j += kLanes) {
      const vi code = round_half_away(load(x + j) * inverse);
      const vbytes bytes = __builtin_convertvector(code & 255, vbytes);
      std::memcpy(b->qs + j, &bytes, sizeof bytes);
    }
  }
}

}  // namespace

void register_encode_blocks(KernelTable& table) {
  table.type(DType::kQ4_0).encode = encode_rows<BlockQ4_0, 8, 0>;
  table.type(DType::kQ4_1).encode = encode_rows<BlockQ4_1, 0, 15>;
  table.type(DType::kQ5_0).encode = encode_rows<BlockQ5_0, 16, 0>;
  table.type(DType::kQ5_1).encode = encode_rows<BlockQ5_1, 0, 31>;
  table.type(DType::kQ8_0).encode = encode_q8_0;
}

}  // namespace weft::WEFT_TARGET
