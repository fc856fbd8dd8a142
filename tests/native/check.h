// Helpers for native tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Prints the place of a failure and ends the test, so that a sanitizer's report is not buried.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

#define RUN(test)               \
  do {                          \
    std::printf("%s\n", #test); \
    std::fflush(stdout);        \
    test();                     \
  } while (false)

// Random numbers that are the same on every machine (Marsaglia's xorshift).
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next()) % n; }
  // A nearly normal number between -6 and 6.
  float normal() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(next() >> 8) / 16777216.0f;
    return sum;
  }

 private:
  uint32_t state_;
};
