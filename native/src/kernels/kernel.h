// A kernel is a parallel loop over items, with a check that returns a sentence when it refuses a
// call.
//
// A kernel file holds one op family. It is compiled once per target (WEFT_TARGET names it) with
// that target's flags, inside `namespace weft::WEFT_TARGET`, and exports one `void
// register_<family>(KernelTable&)`, which kernels/target.cpp calls. The targets are baseline, avx2,
// avx512 and neon; avx_vnni, amx, dotprod and i8mm have products of their own and share all other
// kernels with avx2, avx512 or neon. Kernel files
// use no standard containers or algorithms, because the linker could give the baseline an inline
// function that was compiled for a newer target. They never allocate: the caller provides scratch
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/encode/encode.h"
#include "weft/ops.h"
#include "weft/program.h"
#include "weft/types.h"

namespace weft {

// A tensor with its sizes resolved for this run. Element (i0,i1,i2,i3) is at the address
// data + i0*nb[0] + i1*nb[1] + i2*nb[2] + i3*nb[3]; for block types, i0 counts blocks.
struct Tensor {
  DType type = DType::kF32;
  int64_t ne[4] = {0, 0, 0, 0};  // elements per dimension
  int64_t nb[4] = {0, 0, 0, 0};  // byte strides
  char* data = nullptr;          // may be nullptr during a check
  // In the other layouts ne and nb describe the matrix as if it were stored in rows; each panel of
  // rows occupies the bytes that its rows would occupy (quants/interleave.h), or those that
  // quants/lookup_layout.h and quants/levels.h say. Only source 0 may have them, in kernels with
  // `takes_interleaved`.
  Layout layout = Layout::kRows;
};

// Data for which a kernel has no result. A run reports the first fault.
enum class FaultKind : int32_t { kNone, kTaken, kIndex, kDivision };
struct Fault {
  FaultKind kind = FaultKind::kNone;
  int32_t step = 0;
  int64_t value = 0;  // kIndex: the index, which is outside -size .. size-1
  int64_t size = 0;
};

// One step with its tensors, parameters and memory resolved.
struct Call {
  Tensor dst;
  const Tensor* src[kMaxSrc] = {};  // nullptr: absent
  const double* params = nullptr;   // one per slot of the op
  int n_params = 0;
  int n_threads = 1;
  char* shared = nullptr;  // Kernel::shared bytes that all threads share; runs do not clear them
  int32_t* tickets = nullptr;  // Kernel::tickets counters, all 0 when a run starts
  Fault* fault = nullptr;      // the fault of the run
  int32_t step = 0;            // the index of the step in the program

  // Makes the run fail for this reason. The step may write anything afterwards.
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

  // A parameter by the name of its slot in weft/ops.h. A slot may hold several numbers; `d` is the
  // index of one.
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

// One op's kernel. Only `check`, `items` and `run` are required.
struct Kernel {
  // Returns nullptr when the kernel can run the call, otherwise a sentence that says why not. It
  // reads types, parameters, and sizes and strides (at first at the symbols' maxima), never data.
  const char* (*check)(const Call&) = nullptr;
  // The number of items: units of work that do not depend on each other.
  int64_t (*items)(const Call&) = nullptr;
  // Does the items begin..end (exclusive). `scratch` belongs to the thread that calls.
  void (*run)(const Call&, int64_t begin, int64_t end, char* scratch) = nullptr;
  // The number of items that one thread should claim together (default 1). Chunks are multiples of
  // it; they are smaller only where so many items would take too long for a stop to be noticed.
  int64_t (*grain)(const Call&) = nullptr;
  // Bytes of scratch memory per thread at these sizes (default 0).
  size_t (*scratch)(const Call&) = nullptr;
  // Preparation: work that the threads share and finish before the first item starts. The number
  // of its units (default 0; it may vary with the sizes), and the function that does the units
  // begin..end. It writes to call.shared.
  int64_t (*prepare_units)(const Call&) = nullptr;
  void (*prepare)(const Call&, int64_t begin, int64_t end) = nullptr;
  // For kernels with a preparation, and kernels whose items combine partial results: the number of
  // bytes that all threads share, and the number of counters that tell, by atomic operations,
  // which item is the last of a group. Neither number may be larger at smaller sizes.
  size_t (*shared)(const Call&) = nullptr;
  int64_t (*tickets)(const Call&) = nullptr;
  // Whether source 0 may have another layout than rows. All functions of the kernel then consult
  // its layout.
  bool takes_interleaved = false;
  // Whether the executor may chain this step with its neighbours row by row. It requires that each
  // row of the result has the same number of items, in the order of the rows, and that row r of the
  // result reads only row r of any source that has as many rows as the result.
  bool by_rows = false;
};

// The functions that kernels have for one type. `n` counts elements and is a multiple of the block
// length.
struct TypeOps {
  // Decodes, and encodes, `n` elements; nullptr where the type cannot be read, or written.
  void (*to_float)(const void* src, float* dst, int64_t n) = nullptr;
  void (*from_float)(const float* src, void* dst, int64_t n) = nullptr;
  // Encodes rows as files have them, with or without weights of columns; nullptr where the type
  // cannot be written.
  void (*encode)(const EncodeRows& rows) = nullptr;
  // The type that matmul converts activations to when the weights have this type. With f32 the
  // weights are decoded instead.
  DType vec_type = DType::kF32;
  // Whether MUL_MAT and MUL_MAT_ID of this target read interleaved weights of this type. Plans
  // choose that layout where they do.
  bool matmul_interleaved = false;
  // Whether MUL_MAT and MUL_MAT_ID of this target read weights of this type in the levels layout.
  bool matmul_levels = false;
  // Whether MUL_MAT of this target reads weights of this type in the lookup layout.
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
