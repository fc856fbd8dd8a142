// What both programs of counts.py run: the kernels by name, and the marks around a call.
#pragma once

#include <cstdint>
#include <cstdio>

// The plugin counts from one to the other.
inline void begin_count() { __asm__ volatile("hint #100" ::: "memory"); }
inline void end_count() { __asm__ volatile("hint #101" ::: "memory"); }

// A product of `rows` rows of `depth` weights with `columns` columns.
struct Product {
  const char* type;
  int64_t columns;
};
inline constexpr int64_t kRows = 1024, kDepth = 4096;
inline constexpr Product kProducts[] = {
    {"q4_0", 1}, {"q8_0", 1}, {"q4_K", 1},  {"q5_K", 1},  {"q6_K", 1},  {"iq4_nl", 1},
    {"f16", 1},  {"bf16", 1}, {"q4_0", 64}, {"q8_0", 64}, {"q4_K", 64}, {"q6_K", 64},
};

// Attention of `queries` queries, 8 heads of 64 over 2 heads of keys and values, 1024 cells of f16.
inline constexpr int64_t kHead = 64, kHeads = 8, kCacheHeads = 2, kCells = 1024;
inline constexpr int64_t kQueries[] = {1, 64};

// A line for each call: its name, its multiply-accumulates and the form of its weights.
inline void announce(const char* name, int64_t columns, int64_t macs, const char* form) {
  std::printf("%s %d %lld %s\n", name, static_cast<int>(columns), static_cast<long long>(macs),
              form);
  std::fflush(stdout);
}

// Rows that get numbers of their own; further ones repeat them.
inline constexpr int64_t kOwnRows = 32;

// Numbers between -1 and 1 that are the same for both.
inline float number(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state)) * (1.0f / 2147483648.0f);
}
