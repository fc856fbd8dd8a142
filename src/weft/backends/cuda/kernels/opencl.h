/* OpenCL C as C++, behind device.h or shim.h: what the kernels of all devices use of it. Their
   vectors are classes of this file, under OpenCL's names. */

#define __global
#define __local
#define __constant __constant__
#define __kernel extern "C" __global__
#define LOCAL(T) shared_t<T>

#ifdef WEFT_SHIM
#define ONE_BY_ONE
#define CL_INLINE inline
#else
#define CL_INLINE __device__ __forceinline__
#endif
#define CL_FUNCTION static CL_INLINE

typedef unsigned long long ulong_t;
#define long long long /* 64 bits, as in OpenCL; also where C++ has fewer */
#define ulong ulong_t

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#undef LONG_MAX
#undef LONG_MIN
#define LONG_MAX 0x7fffffffffffffffll
#define LONG_MIN (-LONG_MAX - 1)

/* ---- vectors ----------------------------------------------------------------------------------
 */

template <class T, int N>
struct cl_parts;
template <class T>
struct alignas(2 * sizeof(T)) cl_parts<T, 2> {
  T x, y;
};
template <class T>
struct cl_parts<T, 3> {
  T x, y, z;
};
template <class T>
struct alignas(4 * sizeof(T)) cl_parts<T, 4> {
  T x, y, z, w;
};
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) cl_parts<T, 8> {
  T s0, s1, s2, s3, s4, s5, s6, s7;
};
template <class T>
struct alignas(16) cl_parts<T, 16> {
  T s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sa, sb, sc, sd, se, sf;
};

template <class T, int N>
struct cl_vector : cl_parts<T, N> {
  cl_vector() = default;
  CL_INLINE cl_vector(T all) {
    for (int i = 0; i < N; i++) at(i) = all;
  }
  /* Numbers and vectors, one after another. */
  template <class A, class B, class... C>
  CL_INLINE cl_vector(A first, B second, C... others) {
    fill(0, first, second, others...);
  }
  CL_INLINE T& at(int i) { return ((T*)this)[i]; }
  CL_INLINE const T& at(int i) const { return ((const T*)this)[i]; }

 private:
  CL_INLINE void fill(int) {}
  template <class A, class... B>
  CL_INLINE void fill(int i, A one, B... others) {
    at(i) = (T)one;
    fill(i + 1, others...);
  }
  template <int M, class... B>
  CL_INLINE void fill(int i, cl_vector<T, M> several, B... others) {
    for (int k = 0; k < M; k++) at(i + k) = several.at(k);
    fill(i + M, others...);
  }
};

#define CL_OPERATOR(op)                                                                   \
  template <class T, int N>                                                               \
  CL_FUNCTION cl_vector<T, N> operator op(cl_vector<T, N> a, cl_vector<T, N> b) {         \
    cl_vector<T, N> r;                                                                    \
    for (int i = 0; i < N; i++) r.at(i) = (T)(a.at(i) op b.at(i));                        \
    return r;                                                                             \
  }                                                                                       \
  template <class T, int N, class S>                                                      \
  CL_FUNCTION cl_vector<T, N> operator op(cl_vector<T, N> a, S b) {                       \
    return a op cl_vector<T, N>((T)b);                                                    \
  }                                                                                       \
  template <class T, int N>                                                               \
  CL_FUNCTION cl_vector<T, N> operator op(float a, cl_vector<T, N> b) {                   \
    return cl_vector<T, N>((T)a) op b;                                                    \
  }                                                                                       \
  template <class T, int N>                                                               \
  CL_FUNCTION cl_vector<T, N>& operator op## = (cl_vector<T, N> & a, cl_vector<T, N> b) { \
    return a = a op b;                                                                    \
  }
CL_OPERATOR(+)
CL_OPERATOR(-)
CL_OPERATOR(*)
CL_OPERATOR(&)
CL_OPERATOR(|)
CL_OPERATOR(<<)
CL_OPERATOR(>>)
#undef CL_OPERATOR

template <class T, int N>
CL_FUNCTION cl_vector<T, N / 2> LOW(cl_vector<T, N> v) {
  cl_vector<T, N / 2> r;
  for (int i = 0; i < N / 2; i++) r.at(i) = v.at(i);
  return r;
}
template <class T, int N>
CL_FUNCTION cl_vector<T, N / 2> HIGH(cl_vector<T, N> v) {
  cl_vector<T, N / 2> r;
  for (int i = 0; i < N / 2; i++) r.at(i) = v.at(N / 2 + i);
  return r;
}

template <class To, class From, int N>
CL_FUNCTION cl_vector<To, N> cl_convert(cl_vector<From, N> v) {
  cl_vector<To, N> r;
  for (int i = 0; i < N; i++) r.at(i) = (To)v.at(i);
  return r;
}

template <class To, class From>
CL_FUNCTION To cl_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_ keeps the size");
  To to;
  memcpy((void*)&to, (const void*)&from, sizeof to);
  return to;
}

template <int N, class T>
CL_FUNCTION cl_vector<T, N> cl_load(long i, const T* p) {
  cl_vector<T, N> r;
  for (int k = 0; k < N; k++) r.at(k) = p[N * i + k];
  return r;
}
template <int N, class T>
CL_FUNCTION void cl_store(cl_vector<T, N> v, long i, T* p) {
  for (int k = 0; k < N; k++) p[N * i + k] = v.at(k);
}

#define char signed char /* as in OpenCL, whatever the compiler's is */
#define uchar2 cl_vector<uchar, 2>
#define uchar4 cl_vector<uchar, 4>
#define uchar8 cl_vector<uchar, 8>
#define uchar16 cl_vector<uchar, 16>
#define char2 cl_vector<char, 2>
#define char16 cl_vector<char, 16>
#define ushort16 cl_vector<ushort, 16>
#define int2 cl_vector<int, 2>
#define int3 cl_vector<int, 3>
#define int4 cl_vector<int, 4>
#define uint2 cl_vector<uint, 2>
#define uint4 cl_vector<uint, 4>
#define uint8 cl_vector<uint, 8>
#define uint16 cl_vector<uint, 16>
#define float2 cl_vector<float, 2>
#define float4 cl_vector<float, 4>
#define float8 cl_vector<float, 8>
#define float16 cl_vector<float, 16>
#define half half_t
#define bf16_to_float cl_bf16_to_float /* common.h has them of plain bits */
#define float_to_bf16 cl_float_to_bf16

#define make_uchar2 uchar2
#define make_uchar16 uchar16
#define make_int3 int3
#define make_int4 int4
#define make_uint4 uint4
#define make_uint8 uint8
#define make_uint16 uint16
#define make_float2 float2
#define make_float4 float4
#define make_float8 float8
#define make_float16 float16

#define as_float(x) cl_as<float>(x)
#define as_int(x) cl_as<int>(x)
#define as_uint(x) cl_as<uint>(x)
#define as_ushort(x) cl_as<ushort>(x)
#define as_int2(x) cl_as<int2>((long)(x))
#define as_uint2(x) cl_as<uint2>(x)
#define as_uint4(x) cl_as<uint4>(x)
#define as_uchar4(x) cl_as<uchar4>(x)
#define as_uchar8(x) cl_as<uchar8>(x)
#define as_uchar16(x) cl_as<uchar16>(x)
#define as_char16(x) cl_as<char16>(x)
#define as_float16(x) cl_as<float16>(x)

#define convert_float4(v) cl_convert<float>(v)
#define convert_float8(v) cl_convert<float>(v)
#define convert_float16(v) cl_convert<float>(v)
#define convert_uint16(v) cl_convert<uint>(v)
#define convert_ushort16(v) cl_convert<ushort>(v)
#define convert_uchar16(v) cl_convert<uchar>(v)

#define vload2(i, p) cl_load<2>(i, p)
#define vload4(i, p) cl_load<4>(i, p)
#define vload8(i, p) cl_load<8>(i, p)
#define vload16(i, p) cl_load<16>(i, p)
#define vstore2(v, i, p) cl_store(v, i, p)
#define vstore4(v, i, p) cl_store(v, i, p)
#define vstore8(v, i, p) cl_store(v, i, p)
#define vstore16(v, i, p) cl_store(v, i, p)

CL_FUNCTION float vload_half(long i, const half* p) { return half_to_float(p[i]); }
CL_FUNCTION void vstore_half_rte(float x, long i, half* p) { p[i] = float_to_half(x); }
CL_FUNCTION float16 vload_half16(long i, const half* p) {
  float16 r;
  for (int k = 0; k < 16; k++) r.at(k) = half_to_float(p[16 * i + k]);
  return r;
}

/* ---- places -----------------------------------------------------------------------------------
 */

/* The first item of a grid that is launched in pieces, along the second and third dimension; the
   first parameter of every kernel. */
struct start_t {
  int y, z;
};

#define cl_global_0 ((long)blockIdx.x * blockDim.x + threadIdx.x)
#define cl_global_1 ((int)(blockIdx.y * blockDim.y + threadIdx.y) + start_.y)
#define cl_global_2 ((int)(blockIdx.z * blockDim.z + threadIdx.z) + start_.z)
#define cl_local_0 ((int)threadIdx.x)
#define cl_local_1 ((int)threadIdx.y)
#define cl_size_0 ((int)blockDim.x)
#define cl_group_0 ((int)blockIdx.x)
#define get_global_id(d) cl_global_##d
#define get_local_id(d) cl_local_##d
#define get_local_size(d) cl_size_##d
#define get_group_id(d) cl_group_##d
#define barrier(fence) __syncthreads()

/* ---- functions --------------------------------------------------------------------------------
 */

#define popcount(x) (uint) __popc(x)

template <class T>
CL_FUNCTION T clamp(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

template <int N>
CL_FUNCTION cl_vector<float, N> fma(cl_vector<float, N> a, cl_vector<float, N> b,
                                    cl_vector<float, N> c) {
  cl_vector<float, N> r;
  for (int i = 0; i < N; i++) r.at(i) = fmaf(a.at(i), b.at(i), c.at(i));
  return r;
}

#define CL_LEAST_AND_MOST(T)                               \
  CL_FUNCTION T cl_min(T a, T b) { return b < a ? b : a; } \
  CL_FUNCTION T cl_max(T a, T b) { return a < b ? b : a; }
CL_LEAST_AND_MOST(int)
CL_LEAST_AND_MOST(uint)
CL_LEAST_AND_MOST(long)
#undef CL_LEAST_AND_MOST
#define min cl_min
#define max cl_max

/* Functions of floats. */
#define exp expf
#define exp2 exp2f
#define expm1 expm1f
#define log logf
#define log2 log2f
#define log10 log10f
#define log1p log1pf
#define sqrt sqrtf
#define sin sinf
#define cos cosf
#define tan tanf
#define asin asinf
#define acos acosf
#define atan atanf
#define sinh sinhf
#define cosh coshf
#define tanh tanhf
#define asinh asinhf
#define acosh acoshf
#define atanh atanhf
#define erf erff
#define erfc erfcf
#define fabs fabsf
#define floor floorf
#define ceil ceilf
#define round roundf
#define trunc truncf
#define rint rintf
#define pow powf
#define fmod fmodf
#define atan2 atan2f
#define fmax fmaxf
#define fmin fminf
#define copysign copysignf

/* Functions of kernel files run on the device; they are all `static inline`. */
#ifndef WEFT_SHIM
#define inline __device__ __inline__
#endif
