/* A plugin of qemu's user emulation that counts the instructions of ARM programs by kind, between
   two marks: `hint #100` begins, `hint #101` ends and writes a line of the counts. For one thread.

     qemu-aarch64 -plugin ./libcount.so,out=FILE PROGRAM

   The few declarations are those of qemu's plugin interface, version 1; encodings are those of the
   Arm Architecture Reference Manual, "A64 instruction set encoding". */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*translated)(plugin_id, struct qemu_plugin_tb*);
typedef void (*executed)(unsigned int cpu, void* data);

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, translated);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
extern struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
extern const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn*, int add, void*,
                                                       uint64_t by);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn*, executed, int no_regs,
                                                   void*);

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int qemu_plugin_version = 1;

enum kind { kLoad, kStore, kBytes, kFloats, kOther, kKinds };

static uint64_t counts[kKinds], at_begin[kKinds];
static FILE* out;

struct pattern {
  uint32_t mask, value;
};

static int is_one_of(uint32_t word, const struct pattern* patterns, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if ((word & patterns[i].mask) == patterns[i].value) return 1;
  }
  return 0;
}

/* Products of bytes: SDOT, UDOT, USDOT, SUDOT; SMMLA, UMMLA, USMMLA; SMULL, UMULL, SMLAL, UMLAL of
   bytes. */
static const struct pattern of_bytes[] = {
    {0xbfe0fc00, 0x0e809400}, {0xbfe0fc00, 0x2e809400}, {0xbfe0fc00, 0x0e809c00},
    {0xbfc0f400, 0x0f80e000}, {0xbfc0f400, 0x2f80e000}, {0xbfc0f400, 0x0f80f000},
    {0xbfc0f400, 0x0f00f000}, {0xffe0fc00, 0x4e80a400}, {0xffe0fc00, 0x6e80a400},
    {0xffe0fc00, 0x4e80ac00}, {0xbfe0fc00, 0x0e20c000}, {0xbfe0fc00, 0x2e20c000},
    {0xbfe0fc00, 0x0e208000}, {0xbfe0fc00, 0x2e208000},
};

/* FMLA of floats and halves, whole vectors and by element; BFDOT, BFMMLA; FMLAL. */
static const struct pattern of_floats[] = {
    {0xbfa0fc00, 0x0e20cc00}, {0xbfe0fc00, 0x0e400c00}, {0xbf80f400, 0x0f801000},
    {0xbfc0f400, 0x0f001000}, {0xbfe0fc00, 0x2e40fc00}, {0xbfc0f400, 0x0f40f000},
    {0xffe0fc00, 0x6e40ec00}, {0xbfe0fc00, 0x0e20ec00}, {0xbfe0fc00, 0x2e20cc00},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int is_load(uint32_t w) {
  const uint32_t class = w >> 27 & 7, vector = w >> 26 & 1, opc = w >> 22 & 3;
  if (class == 3) return 1; /* literals */
  if (class == 7 && !vector) return opc != 0;
  return (int)(opc & 1); /* pairs, vectors, structures, exclusive */
}

static enum kind kind_of(uint32_t w) {
  if ((w >> 25 & 5) == 4) return is_load(w) ? kLoad : kStore;
  if (is_one_of(w, of_bytes, COUNT(of_bytes))) return kBytes;
  if (is_one_of(w, of_floats, COUNT(of_floats))) return kFloats;
  return kOther;
}

static void begin(unsigned int cpu, void* data) {
  (void)cpu, (void)data;
  memcpy(at_begin, counts, sizeof counts);
}

static void end(unsigned int cpu, void* data) {
  (void)cpu, (void)data;
  for (int i = 0; i < kKinds; ++i) {
    fprintf(out, "%" PRIu64 "%c", counts[i] - at_begin[i], i + 1 < kKinds ? ' ' : '\n');
  }
  fflush(out);
}

static void translate(plugin_id id, struct qemu_plugin_tb* block) {
  (void)id;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    struct qemu_plugin_insn* one = qemu_plugin_tb_get_insn(block, i);
    uint32_t word;
    memcpy(&word, qemu_plugin_insn_data(one), sizeof word);
    const uint32_t hint = 0xd503201f;
    if (word == (hint | 100 << 5)) {
      qemu_plugin_register_vcpu_insn_exec_cb(one, begin, 0, NULL);
    } else if (word == (hint | 101 << 5)) {
      qemu_plugin_register_vcpu_insn_exec_cb(one, end, 0, NULL);
    } else {
      qemu_plugin_register_vcpu_insn_exec_inline(one, 0, &counts[kind_of(word)], 1);
    }
  }
}

EXPORTED int qemu_plugin_install(plugin_id id, const void* machine, int n, char** arguments) {
  (void)machine;
  for (int i = 0; i < n; ++i) {
    if (strncmp(arguments[i], "out=", 4) == 0) out = fopen(arguments[i] + 4, "w");
  }
  if (out == NULL) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
  return 0;
}
