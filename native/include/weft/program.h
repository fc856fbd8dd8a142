// Program: what one split runs, as data. See src/weft/program.py for the words.
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

// A node of the expression table. kConst: the value is `a`. kSymbol: `a` is the symbol's index.
// Others: `a` and `b` index earlier nodes.
struct Expr {
  ExprKind kind = ExprKind::kConst;
  int64_t a = 0;
  int64_t b = 0;
};

// A size: a constant, or (expr >= 0) a node of the expression table.
struct Size {
  int64_t value = 0;
  int32_t expr = -1;
};

struct TensorDecl {
  std::string name;
  DType type = DType::kF32;
  int32_t buffer = 0;
  Size ne[4];   // sizes, innermost first
  Size nb[4];   // byte strides; nb[0] of a block type is the bytes of a block
  Size offset;  // bytes into the buffer
  Layout layout = Layout::kRows;
};

struct StepDecl {
  Op op = Op::kNone;
  int32_t dst = 0;
  int32_t src[kMaxSrc];  // -1: absent
  int32_t first_param = 0;
  int32_t n_params = 0;
};

// Steps begin..end (exclusive) that do not depend on each other.
struct StageDecl {
  int32_t begin = 0;
  int32_t end = 0;
};

// Whether a step of this op may have `n` parameters; a sentence that lists them where not.
Status check_parameters(Op op, int64_t n);

struct Program {
  std::vector<Symbol> symbols;
  std::vector<Expr> exprs;
  std::vector<int64_t> buffers;  // bytes
  std::vector<TensorDecl> tensors;
  std::vector<StepDecl> steps;
  std::vector<StageDecl> stages;
  std::vector<double> params;

  // Whether every index, size and address is legal at the symbols' maxima. Nothing else may be
  // assumed about a program before this returns ok.
  Status check() const;

  // Values of the expression table for these symbol values; fails on a value outside its bounds, a
  // division by zero or an overflow.
  Status evaluate(const int64_t* symbol_values, std::vector<int64_t>& values) const;
};

}  // namespace weft
