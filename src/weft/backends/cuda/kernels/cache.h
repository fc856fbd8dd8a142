/* Rows of a cache as two numbers a word: f16 and bf16 as they are, blocks as f16. A row is given by
   its first byte; a piece is eight elements. COPY: pieces are copied as they lie. */

struct as_it_lies {
  enum { COPY = 1 };
  static __device__ __forceinline__ uint4 piece(const uchar* row, int p) {
    return ((const uint4*)row)[p];
  }
};

struct f16 : as_it_lies {};
struct bf16 : as_it_lies {};

/* Eight numbers d * codes[i] + m. */
static __device__ __forceinline__ uint4 eight(const int codes[8], float d, float m) {
  uint words[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    words[i] = pack_half2(fmaf(d, (float)codes[2 * i], m), fmaf(d, (float)codes[2 * i + 1], m));
  return make_uint4(words[0], words[1], words[2], words[3]);
}

static __device__ __forceinline__ float half_number(const uchar* p) {
  return half_to_float(*(const half_t*)p);
}

/* Byte i of eight that begin at a multiple of two. */
static __device__ __forceinline__ void eight_bytes(const uchar* p, int bytes[8]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint two = ((const ushort*)p)[i];
    bytes[2 * i] = (int)(two & 255u);
    bytes[2 * i + 1] = (int)(two >> 8);
  }
}

/* Pieces 0 and 1 of a block of 32 are low nibbles, 2 and 3 high ones. */
static __device__ __forceinline__ void eight_nibbles(const uchar* codes, int p, int nibbles[8]) {
  eight_bytes(codes + p % 2 * 8, nibbles);
#pragma unroll
  for (int i = 0; i < 8; i++) nibbles[i] = nibbles[i] >> (p % 4 / 2 * 4) & 15;
}

static __device__ __forceinline__ void add_fifths(const uchar* bits, int p, int codes[8]) {
  const uint byte = ((const ushort*)bits)[p % 4 / 2] >> (p % 2 * 8);
#pragma unroll
  for (int i = 0; i < 8; i++) codes[i] |= (int)(byte >> i & 1u) << 4;
}

struct q8_0 {
  enum { COPY = 0 };
  static __device__ __forceinline__ uint4 piece(const uchar* row, int p) {
    const uchar* block = row + 34 * (p / 4);
    int codes[8];
    eight_bytes(block + 2 + p % 4 * 8, codes);
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] = (signed char)codes[i];
    return eight(codes, half_number(block), 0.0f);
  }
};

/* Nibbles from byte CODES of a block of BYTES on, behind a scale; with BITS, fifth bits from there
   on. A code has OFFSET taken away; where that is none, a minimum follows the scale. */
template <int BYTES, int CODES, int BITS, int OFFSET>
struct block_of_nibbles {
  enum { COPY = 0 };
  static __device__ __forceinline__ uint4 piece(const uchar* row, int p) {
    const uchar* block = row + BYTES * (p / 4);
    int codes[8];
    eight_nibbles(block + CODES, p, codes);
    if constexpr (BITS > 0) add_fifths(block + BITS, p, codes);
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] -= OFFSET;
    float least = 0.0f;
    if constexpr (OFFSET == 0) least = half_number(block + 2);
    return eight(codes, half_number(block), least);
  }
};

struct q4_0 : block_of_nibbles<18, 2, 0, 8> {};
struct q4_1 : block_of_nibbles<20, 4, 0, 0> {};
struct q5_0 : block_of_nibbles<22, 6, 2, 16> {};
struct q5_1 : block_of_nibbles<24, 8, 4, 0> {};

/* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, a byte each */
struct iq4_nl {
  enum { COPY = 0 };
  static __device__ __forceinline__ uint4 piece(const uchar* row, int p) {
    const uchar* block = row + 18 * (p / 4);
    int codes[8];
    eight_nibbles(block + 2, p, codes);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint which = (uint)codes[i] & 7u;
      const uint low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, which);
      const uint high = __byte_perm(0x26190d01u, 0x71594535u, which);
      codes[i] = (signed char)((codes[i] & 8 ? high : low) & 255u);
    }
    return eight(codes, half_number(block), 0.0f);
  }
};
