// The target's instruction set: its intrinsics, the width of its vectors, and the properties by
// which kernels choose their shapes. A new instruction set begins here; the other files of this
// folder then define its words.
#pragma once

#if defined(__x86_64__)
// GCC 12 warns of the deliberately undefined operands inside its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Dot products of bytes in 32-bit sums, 512 or 256 bits wide.
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define WEFT_VNNI 1
#endif

// NEON words; the baseline of ARM does without them, so that the other targets can be held to it.
#if defined(__ARM_NEON) && !defined(WEFT_PLAIN)
#define WEFT_NEON 1
#endif

// Targets that multiply panels of quantized rows, a row in each lane (quants/lane_dots.h).
#if defined(__AVX2__) || defined(WEFT_NEON)
#define WEFT_PANELS 1
#endif

namespace weft::WEFT_TARGET {

// 32-bit lanes of a vector.
#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

// Vector registers.
#if defined(__AVX512F__) || defined(WEFT_NEON)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

// Whether a product is fused with its sum; otherwise it takes a register of its own.
#if defined(__FMA__) || defined(WEFT_NEON)
inline constexpr bool kFused = true;
#else
inline constexpr bool kFused = false;
#endif

// Whether one instruction adds products of bytes to sums of 32 bits, or (NEON without dot products)
// two add up all of them there. AVX2 keeps the sums of pairs of products in 16 bits instead.
#if defined(WEFT_VNNI) || defined(WEFT_NEON)
inline constexpr bool kWholeDots = true;
#else
inline constexpr bool kWholeDots = false;
#endif
#if defined(__AVX2__) && !defined(WEFT_VNNI)
inline constexpr bool kPairedDots = true;
#else
inline constexpr bool kPairedDots = false;
#endif

// Whether dot products multiply signed bytes with any lane of a vector, as NEON's do. (Those of x86
// multiply unsigned bytes with signed ones.)
#if defined(WEFT_NEON)
inline constexpr bool kLaneDots = true;
#else
inline constexpr bool kLaneDots = false;
#endif

// Whether matrices of bytes are multiplied, of two rows and two columns.
#if defined(WEFT_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr bool kMatrixDots = true;
#else
inline constexpr bool kMatrixDots = false;
#endif

}  // namespace weft::WEFT_TARGET
