/* Integers of any type, loaded as long; storing wraps around. */

static inline int is_whole(int type) { return type >= I8 && type <= I64; }

static inline long load_whole(bytes_t p, int type) {
  switch (type) {
    case I8:
      return *(const __global char*)p;
    case I16:
      return *(const __global short*)p;
    case I32:
      return *(const __global int*)p;
    default:
      return *(const __global long*)p;
  }
}

static inline void store_whole(__global uchar* p, int type, long x) {
  switch (type) {
    case I8:
      *(__global char*)p = (char)x;
      return;
    case I16:
      *(__global short*)p = (short)x;
      return;
    case I32:
      *(__global int*)p = (int)x;
      return;
    default:
      *(__global long*)p = x;
  }
}

/* A number, float or integer, as an integer with the same order; NaNs come last. */
static inline long in_order(bytes_t p, int type) {
  if (is_whole(type)) return load_whole(p, type);
  float x = load(p, type);
  if (isnan(x)) return LONG_MAX;
  int bits = as_int(x);
  return bits < 0 ? -(long)(bits & 0x7fffffff) : (long)bits;
}
