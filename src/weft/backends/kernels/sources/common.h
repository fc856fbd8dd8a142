/* Definitions for all kernels: tensors as arguments, elements of float types, sums over a group.

   Kernels are OpenCL C that is also C++: behind weft/backends/cuda/kernels/opencl.h, compilers of
   CUDA read it. So vectors are made by make_ names, halves of them taken by LOW and HIGH, and
   arguments in local memory are LOCAL(type). */

#ifndef __cplusplus
#define LOCAL(T) __local T*
#define LOW(v) (v).lo
#define HIGH(v) (v).hi
#define make_uchar2 (uchar2)
#define make_uchar16 (uchar16)
#define make_int3 (int3)
#define make_int4 (int4)
#define make_uint2 (uint2)
#define make_uint4 (uint4)
#define make_uint8 (uint8)
#define make_uint16 (uint16)
#define make_float2 (float2)
#define make_float4 (float4)
#define make_float8 (float8)
#define make_float16 (float16)
#endif

typedef struct {
  long at;    /* offset of the first element in its buffer, in bytes */
  long nb[4]; /* byte strides, innermost first */
  int ne[4];  /* sizes */
  int type;   /* number of the element type */
  int unused;
} tensor_t;

typedef const __global uchar* bytes_t;

/* Kernels find their place along dimensions 1 and 2 by get_global_id. Large grids are launched in
   pieces, and get_group_id does not include the offset of a piece. */

#ifdef NATIVE_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

enum {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  BF16 = 30
};

/* Before loops over conversions: unrolled, they would make kernels large and slow to compile. */
#ifndef ONE_BY_ONE
#define ONE_BY_ONE _Pragma("unroll 1")
#endif

static inline long at4(const tensor_t* t, long i0, long i1, long i2, long i3) {
  return t->at + i0 * t->nb[0] + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

/* Loads an f16 number as f32, with the device's own type where it has one. */
static inline float load_f16(bytes_t p) {
#ifdef NATIVE_HALF
  return (float)*(const __global half*)p;
#else
  return vload_half(0, (const __global half*)p);
#endif
}

static inline void store_f16(__global uchar* p, float x) {
#ifdef NATIVE_HALF
  *(__global half*)p = convert_half_rte(x);
#else
  vstore_half_rte(x, 0, (__global half*)p);
#endif
}

static inline float bf16_to_float(ushort bits) { return as_float((uint)bits << 16); }

/* Rounds to nearest even; a NaN stays a NaN. */
static inline ushort float_to_bf16(float x) {
  uint bits = as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (ushort)((bits >> 16) | 64);
  return (ushort)((bits + (0x7fffu + ((bits >> 16) & 1))) >> 16);
}

static inline float load(bytes_t p, int type) {
#ifdef ALL_F32
  return *(const __global float*)p;
#else
  switch (type) {
    case F32:
      return *(const __global float*)p;
    case F16:
      return load_f16(p);
    case BF16:
      return bf16_to_float(*(const __global ushort*)p);
    case I16:
      return (float)*(const __global short*)p;
    default:
      return (float)*(const __global int*)p;
  }
#endif
}

static inline void store(__global uchar* p, int type, float x) {
#ifdef ALL_F32
  *(__global float*)p = x;
#else
  switch (type) {
    case F32:
      *(__global float*)p = x;
      return;
    case F16:
      store_f16(p, x);
      return;
    case BF16:
      *(__global ushort*)p = float_to_bf16(x);
      return;
    case I16:
      *(__global short*)p = (short)x;
      return;
    default:
      *(__global int*)p = (int)x;
      return;
  }
#endif
}

/* Records a Fault (enums.py) with the index `i` and the size `n` that it exceeds. */
static inline void note(__global int* fault, int step, long i, long n, int kind) {
  fault[0] = step + 1;
  fault[1] = kind;
  vstore2(as_int2(i), 1, fault);
  vstore2(as_int2(n), 2, fault);
}

/* Reads an index of type i32 or i64. An index outside 0 .. n-1 records a fault and gives -1. */
static inline long checked_index(bytes_t p, int type, long n, __global int* fault, int step) {
  long i = type == I64 ? *(const __global long*)p : (long)*(const __global int*)p;
  if (i >= 0 && i < n) return i;
  note(fault, step, i, n, BAD_INDEX);
  return -1;
}

/* The same, but negative indices count from the end. */
static inline long wrapped_index(bytes_t p, int type, long n, __global int* fault, int step) {
  long i = type == I64 ? *(const __global long*)p : (long)*(const __global int*)p;
  if (i >= -n && i < n) return i < 0 ? i + n : i;
  note(fault, step, i, n, BAD_WRAPPED_INDEX);
  return -1;
}

/* ---- sums and maxima over the items of a one-dimensional group ----

   With SUBGROUPS, items of a subgroup exchange numbers without local memory. How a device puts
   items into subgroups is its own choice: kernels count their items by ITEM, subgroup by subgroup.
   Results are the same to the bit as without, as the same numbers are joined in the same order. */

#ifdef SUBGROUPS
#pragma OPENCL EXTENSION cl_khr_subgroups : enable

/* The items of a subgroup, a power of two, where all subgroups of a group are whole; else 1. */
static inline int items_in_step(int n_items) {
  const int n = (int)get_max_sub_group_size();
  return n * (int)get_num_sub_groups() == n_items && (n & (n - 1)) == 0 ? n : 1;
}

static inline int number_of_item(int n_items) {
  const int n = items_in_step(n_items);
  if (n == 1) return (int)get_local_id(0);
  return (int)get_sub_group_id() * n + (int)get_sub_group_local_id();
}

#define IN_STEP items_in_step((int)get_local_size(0))
#define ITEM number_of_item((int)get_local_size(0))
#define STEP_OF(x, width, by, JOIN) \
  if ((width) > (by)) x = JOIN(x, sub_group_shuffle_xor(x, by));
#define IN_STEPS(x, width, JOIN) \
  STEP_OF(x, width, 64, JOIN)    \
  STEP_OF(x, width, 32, JOIN)    \
  STEP_OF(x, width, 16, JOIN)    \
  STEP_OF(x, width, 8, JOIN)     \
  STEP_OF(x, width, 4, JOIN)     \
  STEP_OF(x, width, 2, JOIN)     \
  STEP_OF(x, width, 1, JOIN)
#else
#define IN_STEP 1
#define ITEM ((int)get_local_id(0))
#define IN_STEPS(x, width, JOIN)
#endif

/* The place of the item along the first dimension of the grid. */
#define ITEM_OF_GRID (get_group_id(0) * get_local_size(0) + ITEM)

#define SUM_OF(a, b) ((a) + (b))

/* Joins x of `n` neighbouring items, a power of two, for all of them: in pairs of items that are
   n / 2, ..., 2 and 1 apart. `tmp` has a place for each item of the group. */
#define OVER_ITEMS(name, T, JOIN)                         \
  static inline T name(T x, int n, __local T* tmp) {      \
    const int l = ITEM, width = min(n, IN_STEP);          \
    if (n > width) {                                      \
      tmp[l] = x;                                         \
      barrier(CLK_LOCAL_MEM_FENCE);                       \
      for (int s = n / 2; s >= width; s /= 2) {           \
        if (l % n < s) tmp[l] = JOIN(tmp[l], tmp[l + s]); \
        barrier(CLK_LOCAL_MEM_FENCE);                     \
      }                                                   \
      x = tmp[l - l % n + l % width];                     \
      barrier(CLK_LOCAL_MEM_FENCE);                       \
    }                                                     \
    IN_STEPS(x, width, JOIN)                              \
    return x;                                             \
  }

OVER_ITEMS(sum_over, float, SUM_OF)
OVER_ITEMS(most_over, float, fmax)

/* The sum, and the maximum, of x over all items of a group. */
static inline float group_sum(float x, __local float* tmp) {
  return sum_over(x, (int)get_local_size(0), tmp);
}
static inline float group_max(float x, __local float* tmp) {
  return most_over(x, (int)get_local_size(0), tmp);
}
