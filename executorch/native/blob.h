// What `preprocess` wrote, read and checked: a Program, and how it meets the world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/program.h"

namespace weft::et {

// Where the bytes of a buffer come from; the numbers of schema/program.fbs.
enum class Memory : int8_t { kArena, kConstant, kState, kInput, kOutput };

struct BufferInfo {
  Memory memory = Memory::kArena;
  std::string key;   // of constants and first states: in the file's named data
  std::string name;  // of a state
  Layout stored = Layout::kRows;
};

// Which size of which input is a symbol: (size - add) / mul.
struct SymbolSource {
  int32_t input = 0;
  int32_t dim = -1;  // -1: the input is an integer
  int64_t mul = 1;
  int64_t add = 0;
};

inline constexpr int kInteger = -1;  // an argument that is a size, the one in Value::dims
inline constexpr int kIgnored = -2;  // one that the program does not look at

// An argument of the call.
struct Value {
  std::string name;
  int32_t tensor = -1;         // -1: an integer, or an input that nothing reads
  int scalar_type = kIgnored;  // ExecuTorch's
  std::vector<Size> dims;
};

struct Blob {
  Program program;
  std::vector<BufferInfo> buffers;  // as many as program.buffers
  std::vector<SymbolSource> symbols;
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  int threads = 0;
  bool share_state = false;
};

// Reads a blob that may have any bytes. What it accepts has passed Program::check, and names no
// input, tensor or buffer that is not there; constants and inputs are written by no step.
Status read_blob(const void* data, size_t size, Blob& out);

}  // namespace weft::et
