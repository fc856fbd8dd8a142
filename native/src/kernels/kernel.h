// What a kernel is: a parallel loop over items, with a check that refuses in a sentence.
//
// A kernel file holds one op family. It is compiled once per target (WEFT_TARGET names it:
// baseline, avx2, avx512, neon) with that target's flags, inside `namespace weft::WEFT_TARGET`, and
// exports one `void register_<family>(KernelTable&)`, which kernels/target.cpp calls. Kernel files
// use no standard containers or algorithms (an inline function compiled for a newer target could be
// linked into the baseline) and never allocate: scratch comes from the caller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/ops.h"
#include "weft/program.h"
#include "weft/types.h"

namespace weft {

// A tensor with its sizes resolved for this run. Element (i0,i1,i2,i3) is at
// data + i0*nb[0] + i1*nb[1] + i2*nb[2] + i3*nb[3] (blocks along i0 for block types).
struct Tensor {
  DType type = DType::kF32;
  int64_t ne[4] = {0, 0, 0, 0};
  int64_t nb[4] = {0, 0, 0, 0};
  char* data = nullptr;  // nullptr while checking
  // kInterleaved: ne and nb are those of the rows, but whole panels of rows are where they say
  // (quants/interleave.h). kLookup: likewise (quants/lookup_layout.h). Only sources 0 of kernels
  // that take it.
  Layout layout = Layout::kRows;
};

// What a kernel met in its data that has no result. The first one of a run is reported by it.
enum class FaultKind : int32_t { kNone, kTaken, kIndex, kDivision };
struct Fault {
  FaultKind kind = FaultKind::kNone;
  int32_t step = 0;
  int64_t value = 0;  // kIndex: an index outside -size .. size-1
  int64_t size = 0;
};

// One step with everything resolved.
struct Call {
  Tensor dst;
  const Tensor* src[kMaxSrc] = {};  // nullptr: absent
  const double* params = nullptr;   // as many as the op has slots
  int n_params = 0;
  int n_threads = 1;
  char* shared = nullptr;      // Kernel::shared bytes, for all threads; not cleared between runs
  int32_t* tickets = nullptr;  // Kernel::tickets counters, 0 when a run starts
  Fault* fault = nullptr;      // of the run
  int32_t step = 0;

  // Makes the run fail with this reason; what the step writes does not matter then.
  void fail(FaultKind kind, int64_t value = 0, int64_t size = 0) const {
    if (fault == nullptr) return;
    auto* state = reinterpret_cast<int32_t*>(&fault->kind);
    auto expected = static_cast<int32_t>(FaultKind::kNone);
    if (!__atomic_compare_exchange_n(state, &expected, static_cast<int32_t>(FaultKind::kTaken),
                                     false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      return;
    }
    fault->step = step;
    fault->value = value;
    fault->size = size;
    __atomic_store_n(state, static_cast<int32_t>(kind), __ATOMIC_RELEASE);
  }

  // A parameter by the name that weft/ops.h gives its slot; `d`: which number of a slot of several.
  template <typename Slot>
  [[gnu::always_inline]] double number(Slot slot, int d = 0) const {
    static_assert(__is_enum(Slot), "parameters are read by the names of weft/ops.h");
    return params[static_cast<int>(slot) + d];
  }
  template <typename Slot>
  [[gnu::always_inline]] float f(Slot slot, int d = 0) const {
    return static_cast<float>(number(slot, d));
  }
  template <typename Slot>
  [[gnu::always_inline]] int64_t i(Slot slot, int d = 0) const {
    return static_cast<int64_t>(number(slot, d));
  }
  template <typename Enum, typename Slot>
  [[gnu::always_inline]] Enum as(Slot slot) const {
    return static_cast<Enum>(i(slot));
  }
  // Whether the slot holds a member of an enumeration.
  template <typename Enum, typename Slot>
  [[gnu::always_inline]] bool is_one(Slot slot) const {
    return number(slot) >= 0 && number(slot) < static_cast<double>(kMembers<Enum>);
  }
};

struct Kernel {
  // nullptr when the kernel can run the call, else a sentence. Reads types, sizes and strides (at
  // the symbols' maxima) and params, never data.
  const char* (*check)(const Call&) = nullptr;
  // Independent units of work.
  int64_t (*items)(const Call&) = nullptr;
  // Does items begin..end. `scratch` belongs to this thread.
  void (*run)(const Call&, int64_t begin, int64_t end, char* scratch) = nullptr;
  // Items that one thread should take at a time; chunks are multiples, and smaller only where so
  // many take so long that a run could not be stopped soon. Default 1.
  int64_t (*grain)(const Call&) = nullptr;
  // Scratch bytes per thread at these sizes. Default 0.
  size_t (*scratch)(const Call&) = nullptr;
  // Work that all threads share out and finish before the first item: units of it (default 0; it
  // may depend on sizes that vary), and what does units begin..end. It writes to call.shared.
  int64_t (*prepare_units)(const Call&) = nullptr;
  void (*prepare)(const Call&, int64_t begin, int64_t end) = nullptr;
  // For a step with preparations, or whose items meet again: bytes that all threads share, and
  // counters (to be used atomically) that say which item is the last. At least as many as at any
  // smaller sizes.
  size_t (*shared)(const Call&) = nullptr;
  int64_t (*tickets)(const Call&) = nullptr;
  // Whether source 0 may be in another layout than rows; `check` and the rest then look at its
  // layout.
  bool takes_interleaved = false;
  // Items go through the rows of the result in order, as many for each; and a row of the result
  // depends on no other row of the sources that have as many rows. Such steps are chained.
  bool by_rows = false;
};

// Conversions of whole rows for one type. `n` counts elements, a multiple of the block.
struct TypeOps {
  void (*to_float)(const void* src, float* dst, int64_t n) = nullptr;
  // The run-time converter (CPY, SET_ROWS, KV cache); nullptr: the type cannot be written.
  void (*from_float)(const float* src, void* dst, int64_t n) = nullptr;
  // What matmul wants activations as where weights have this type; f32: the weights are decoded.
  DType vec_type = DType::kF32;
  // Whether MUL_MAT and MUL_MAT_ID of this target read interleaved weights of this type: plans then
  // choose that layout.
  bool matmul_interleaved = false;
  // Likewise of weights in the lookup layout, which MUL_MAT reads.
  bool matmul_lookup = false;
};

struct KernelTable {
  Kernel kernels[static_cast<size_t>(Op::kCount)];
  TypeOps types[kDTypeCount];

  Kernel& operator[](Op op) { return kernels[static_cast<size_t>(op)]; }
  const Kernel& operator[](Op op) const { return kernels[static_cast<size_t>(op)]; }
  const TypeOps& type(DType t) const { return types[static_cast<size_t>(t)]; }
  TypeOps& type(DType t) { return types[static_cast<size_t>(t)]; }
};

}  // namespace weft
