/* A tensor as an argument, and what kernels record when their data have no result. */

typedef struct {
  long at;    /* offset of the first element in its buffer, in bytes */
  long nb[4]; /* byte strides, innermost first */
  int ne[4];  /* sizes */
  int type;   /* number of the element type */
  int unused;
} tensor_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

/* Records that index `i` is outside 0 .. n-1 (Fault.BAD_INDEX of enums.py). */
static __device__ __forceinline__ void note_index(int* fault, int step, long i, long n) {
  fault[0] = step + 1;
  fault[1] = 0;
  *(long*)(fault + 2) = i;
  *(long*)(fault + 4) = n;
}
