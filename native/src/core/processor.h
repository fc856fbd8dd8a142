// The features of the processor that the system lets programs use.
#pragma once

namespace weft {

// A feature that an architecture has not, or a system says nothing of, is false.
struct Processor {
  // x86-64; those of wide registers only where the system saves them
  bool sse42 = false, avx = false, avx2 = false, fma = false, f16c = false, avx_vnni = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false, avx512vnni = false;
  bool avx512bf16 = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
  bool is_amd = false;
  // ARM, 64 bits
  bool dotprod = false, fp16 = false, i8mm = false, bf16 = false, sve = false, sve2 = false;

  // Whether kernel targets can run.
  bool runs_avx2() const { return avx2 && fma && f16c; }
  bool runs_avx_vnni() const { return runs_avx2() && avx_vnni; }
  bool runs_avx512() const {
    return runs_avx2() && avx512f && avx512bw && avx512vl && avx512dq && avx512vnni;
  }
  bool runs_amx() const { return runs_avx512() && avx512bf16 && amx_tile && amx_int8 && amx_bf16; }
  bool runs_dotprod() const { return dotprod; }
  bool runs_i8mm() const { return dotprod && i8mm && bf16; }
};

// This one. The function is compiled for any processor, and may be asked by all kernels.
const Processor& processor();

}  // namespace weft
