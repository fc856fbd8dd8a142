#include "weft/types.h"

namespace weft {

namespace {

struct Table {
  DTypeInfo rows[kDTypeCount] = {};

  void set(DType type, const char* name, int32_t block, int32_t size) {
    rows[static_cast<size_t>(type)] = {name, block, size};
  }

  Table() {
    set(DType::kF32, "f32", 1, 4);
    set(DType::kF16, "f16", 1, 2);
    set(DType::kBF16, "bf16", 1, 2);
    set(DType::kF64, "f64", 1, 8);
    set(DType::kI8, "i8", 1, 1);
    set(DType::kI16, "i16", 1, 2);
    set(DType::kI32, "i32", 1, 4);
    set(DType::kI64, "i64", 1, 8);
    set(DType::kQ4_0, "q4_0", 32, 18);
    set(DType::kQ4_1, "q4_1", 32, 20);
    set(DType::kQ5_0, "q5_0", 32, 22);
    set(DType::kQ5_1, "q5_1", 32, 24);
    set(DType::kQ8_0, "q8_0", 32, 34);
    set(DType::kQ8_1, "q8_1", 32, 36);
    set(DType::kQ2_K, "q2_K", 256, 84);
    set(DType::kQ3_K, "q3_K", 256, 110);
    set(DType::kQ4_K, "q4_K", 256, 144);
    set(DType::kQ5_K, "q5_K", 256, 176);
    set(DType::kQ6_K, "q6_K", 256, 210);
    set(DType::kQ8_K, "q8_K", 256, 292);
    set(DType::kIQ2_XXS, "iq2_xxs", 256, 66);
    set(DType::kIQ2_XS, "iq2_xs", 256, 74);
    set(DType::kIQ3_XXS, "iq3_xxs", 256, 98);
    set(DType::kIQ1_S, "iq1_s", 256, 50);
    set(DType::kIQ4_NL, "iq4_nl", 32, 18);
    set(DType::kIQ3_S, "iq3_s", 256, 110);
    set(DType::kIQ2_S, "iq2_s", 256, 82);
    set(DType::kIQ4_XS, "iq4_xs", 256, 136);
    set(DType::kIQ1_M, "iq1_m", 256, 56);
    set(DType::kTQ1_0, "tq1_0", 256, 54);
    set(DType::kTQ2_0, "tq2_0", 256, 66);
    set(DType::kI2_S, "i2_s", 128, 32);
    set(DType::kMXFP4, "mxfp4", 32, 17);
    set(DType::kNVFP4, "nvfp4", 64, 36);
    set(DType::kQ1_0, "q1_0", 128, 18);
    set(DType::kQ2_0, "q2_0", 64, 18);
    set(DType::kQ6_0, "q6_0", 32, 26);
    set(DType::kIQ2_BN, "iq2_bn", 64, 20);
    set(DType::kIQ2_K, "iq2_k", 256, 76);
    set(DType::kIQ3_K, "iq3_k", 256, 110);
    set(DType::kIQ4_K, "iq4_k", 256, 144);
    set(DType::kIQ5_K, "iq5_k", 256, 176);
    set(DType::kIQ6_K, "iq6_k", 256, 212);
    set(DType::kIQ4_KS, "iq4_ks", 256, 140);
    set(DType::kIQ2_KS, "iq2_ks", 256, 72);
    set(DType::kQ8_KV, "q8_KV", 32, 36);
    set(DType::kIQ5_KS, "iq5_ks", 256, 172);
    set(DType::kIQ2_KT, "iq2_kt", 256, 72);
    set(DType::kIQ3_KT, "iq3_kt", 256, 104);
    set(DType::kIQ4_KT, "iq4_kt", 256, 132);
    set(DType::kIQ3_KS, "iq3_ks", 256, 104);
    set(DType::kIQ2_KL, "iq2_kl", 256, 88);
    set(DType::kIQ1_KT, "iq1_kt", 256, 60);
    set(DType::kIQ1_M_R4, "iq1_m_r4", 256, 58);
  }
};

}  // namespace

const DTypeInfo& dtype_info(DType type) {
  static const Table table;
  static const DTypeInfo none = {nullptr, 1, 1};
  const auto i = static_cast<int32_t>(type);
  return i >= 0 && i < kDTypeCount ? table.rows[i] : none;
}

}  // namespace weft
