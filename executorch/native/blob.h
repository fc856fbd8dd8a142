// Reads and checks the blob that `preprocess` wrote: a Program, and how its buffers, inputs and
// outputs correspond to ExecuTorch's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/program.h"

namespace weft::et {

// Where the bytes of a buffer come from, with the numbers of schema/program.fbs.
enum class Memory : int8_t { kArena, kConstant, kState, kInput, kOutput };

struct BufferInfo {
  Memory memory = Memory::kArena;
  std::string key;   // the named data of the file with a constant, or the first contents of a state
  std::string name;  // the name of a state
  Layout stored = Layout::kRows;  // the layout of a constant in the file
};

// The value of a symbol is (size - add) / mul, with a size of an input.
struct SymbolSource {
  int32_t input = 0;
  int32_t dim = -1;  // the dimension of the size; -1 when the input is an integer
  int64_t mul = 1;
  int64_t add = 0;
};

inline constexpr int kInteger = -1;  // an integer argument, whose value is dims[0]
inline constexpr int kIgnored = -2;  // an argument that the program does not read

// An input or output of the call.
struct Value {
  std::string name;
  int32_t tensor = -1;         // -1 for an integer, and for an input that nothing reads
  int scalar_type = kIgnored;  // ExecuTorch's number, kInteger or kIgnored
  std::vector<Size> dims;      // outermost first
};

// The value of a node of the exported program: a view of all elements that a step computes, in
// order. Sizes, strides and offset are in elements, outermost first; no strides: all in order.
struct NodeValue {
  size_t step = 0;
  int scalar_type = 0;  // ExecuTorch's number
  std::vector<Size> dims;
  std::vector<Size> strides;
  Size offset;
};

// What an event tracer is told about a step.
struct Event {
  std::string name;  // empty: the number of the step is its name
  std::vector<NodeValue> values;
};

struct Blob {
  Program program;
  std::vector<BufferInfo> buffers;  // one for each of program.buffers
  std::vector<SymbolSource> symbols;
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  std::vector<Event> events;  // one for each of program.steps
  int threads = 0;
  bool share_state = false;
};

// Reads a blob, which may have any bytes. A blob that it accepts has passed Program::check, names
// only inputs, tensors and buffers that exist, and has no step that writes to a constant or an
// input.
Status read_blob(const void* data, size_t size, Blob& out);

}  // namespace weft::et
