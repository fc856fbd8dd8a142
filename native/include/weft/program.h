// A Program lists, as data, the steps of one split: a part of a graph that one device runs without
// a break. src/weft/program.py explains its terms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/ops.h"
#include "weft/status.h"
#include "weft/types.h"

namespace weft {

inline constexpr int kMaxSrc = 10;

struct Symbol {
  std::string name;
  int64_t min = 0;
  int64_t max = 0;
};

enum class ExprKind : int32_t { kConst, kSymbol, kAdd, kMul, kDiv, kMod, kMin, kMax };

// A node of the expression table. kConst: the value is `a`. kSymbol: `a` is the index of a symbol.
// Other kinds: `a` and `b` are indices of earlier nodes.
struct Expr {
  ExprKind kind = ExprKind::kConst;
  int64_t a = 0;
  int64_t b = 0;
};

// A size: node `expr` of the expression table, or the constant `value` where `expr` is -1.
struct Size {
  int64_t value = 0;
  int32_t expr = -1;
};

struct TensorDecl {
  std::string name;
  DType type = DType::kF32;
  int32_t buffer = 0;
  Size ne[4];   // elements per dimension, innermost first
  Size nb[4];   // byte strides; nb[0] of a block type is the bytes of a block
  Size offset;  // bytes from the start of the buffer
  Layout layout = Layout::kRows;
};

struct StepDecl {
  Op op = Op::kNone;
  int32_t dst = 0;
  int32_t src[kMaxSrc];  // indices of tensors; -1 where a source is absent
  int32_t first_param = 0;
  int32_t n_params = 0;
};

// The steps begin..end (exclusive). They do not depend on each other.
struct StageDecl {
  int32_t begin = 0;
  int32_t end = 0;
};

// Ok when a step of this op may have `n` parameters; otherwise an error that lists the parameters.
Status check_parameters(Op op, int64_t n);

struct Program {
  std::vector<Symbol> symbols;
  std::vector<Expr> exprs;
  std::vector<int64_t> buffers;  // the size of each, in bytes
  std::vector<TensorDecl> tensors;
  std::vector<StepDecl> steps;
  std::vector<StageDecl> stages;
  std::vector<double> params;

  // Checks every index, the number of sources and parameters of each step, and that the stages
  // cover the steps in order. Call it before anything else reads the program. Sizes and addresses
  // are checked when they are bound to values and memory (Executor::create).
  Status check() const;

  // Computes the value of each expression from the value of each symbol. Fails when a symbol is
  // outside its bounds, and on a division by zero or an overflow.
  Status evaluate(const int64_t* symbol_values, std::vector<int64_t>& values) const;
};

}  // namespace weft
