// The checks that come before a Program is run, and the values of its expressions.
#include "weft/program.h"

#include <cmath>
#include <string>

#include "quants/interleave.h"

namespace weft {

namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

bool add(int64_t a, int64_t b, int64_t& out) { return !__builtin_add_overflow(a, b, &out); }
bool mul(int64_t a, int64_t b, int64_t& out) { return !__builtin_mul_overflow(a, b, &out); }

Status bad(const std::string& what) { return Status::invalid(what); }

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

Status check_expr(const Program& p, size_t i) {
  const Expr& e = p.exprs[i];
  const auto earlier = [&](int64_t index) { return index >= 0 && index < static_cast<int64_t>(i); };
  switch (e.kind) {
    case ExprKind::kConst:
      return Status::ok();
    case ExprKind::kSymbol:
      if (e.a < 0 || e.a >= static_cast<int64_t>(p.symbols.size())) {
        return bad("expression " + std::to_string(i) + " names symbol " + std::to_string(e.a) +
                   " of " + std::to_string(p.symbols.size()));
      }
      return Status::ok();
    case ExprKind::kAdd:
    case ExprKind::kMul:
    case ExprKind::kDiv:
    case ExprKind::kMod:
    case ExprKind::kMin:
    case ExprKind::kMax:
      if (!earlier(e.a) || !earlier(e.b)) {
        return bad("expression " + std::to_string(i) + " uses an expression that is not before it");
      }
      return Status::ok();
  }
  return bad("expression " + std::to_string(i) + " has an unknown kind");
}

Status check_size(const Program& p, const TensorDecl& t, const Size& s) {
  if (s.expr < -1 || s.expr >= static_cast<int32_t>(p.exprs.size())) {
    return bad("tensor " + t.name + " uses expression " + std::to_string(s.expr) + " of " +
               std::to_string(p.exprs.size()));
  }
  return Status::ok();
}

Status check_tensor(const Program& p, const TensorDecl& t) {
  if (dtype_info(t.type).name == nullptr) {
    return bad("tensor " + t.name + " has unknown type " +
               std::to_string(static_cast<int32_t>(t.type)));
  }
  if (t.layout < Layout::kRows || t.layout > Layout::kOrdered) {
    return bad("tensor " + t.name + " has an unknown layout");
  }
  if (t.buffer < 0 || t.buffer >= static_cast<int32_t>(p.buffers.size())) {
    return bad("tensor " + t.name + " is in buffer " + std::to_string(t.buffer) + " of " +
               std::to_string(p.buffers.size()));
  }
  for (int d = 0; d < 4; ++d) {
    if (Status s = check_size(p, t, t.ne[d]); !s.is_ok()) return s;
    if (Status s = check_size(p, t, t.nb[d]); !s.is_ok()) return s;
  }
  return check_size(p, t, t.offset);
}

Status check_sources(const Program& p, const StepDecl& step, const std::string& name) {
  const OpInfo& info = kOpInfo[static_cast<size_t>(step.op)];
  const auto exists = [&](int32_t i) {
    return i >= 0 && i < static_cast<int32_t>(p.tensors.size());
  };
  if (!exists(step.dst)) return bad(name + " writes a tensor that does not exist");
  int present = 0;
  for (int32_t src : step.src) {
    if (src != -1 && !exists(src)) return bad(name + " reads a tensor that does not exist");
    if (src != -1) ++present;
  }
  if (present < info.min_src || present > info.max_src) {
    return bad(name + " (" + info.name + ") has " + std::to_string(present) + " sources, takes " +
               std::to_string(info.min_src) + ".." + std::to_string(info.max_src));
  }
  for (int s = 0; s < info.min_src && s < kMaxSrc; ++s) {
    if (step.src[s] == -1) return bad(name + " (" + info.name + ") lacks a required source");
  }
  return Status::ok();
}

Status check_step(const Program& p, size_t i) {
  const StepDecl& step = p.steps[i];
  const std::string name = "step " + std::to_string(i);
  if (step.op <= Op::kNone || step.op >= Op::kCount) return bad(name + " has an unknown op");
  if (Status s = check_sources(p, step, name); !s.is_ok()) return s;
  const auto last = static_cast<int64_t>(step.first_param) + step.n_params;
  if (step.first_param < 0 || step.n_params < 0 || last > static_cast<int64_t>(p.params.size())) {
    return bad(name + " has parameters outside the table");
  }
  if (Status s = check_parameters(step.op, step.n_params); !s.is_ok()) {
    return bad(name + ": " + s.message());
  }
  return Status::ok();
}

Status check_stages(const Program& p) {
  const auto n_steps = static_cast<int32_t>(p.steps.size());
  int32_t next = 0;
  for (const StageDecl& stage : p.stages) {
    if (stage.begin != next || stage.end <= stage.begin || stage.end > n_steps) {
      return bad("stages do not cover the steps in order");
    }
    next = stage.end;
  }
  return next == n_steps ? Status::ok() : bad("stages do not cover the steps in order");
}

}  // namespace

Status Program::evaluate(const int64_t* symbol_values, std::vector<int64_t>& values) const {
  values.resize(exprs.size());
  for (size_t s = 0; s < symbols.size(); ++s) {
    if (symbol_values[s] < symbols[s].min || symbol_values[s] > symbols[s].max) {
      return bad("symbol " + symbols[s].name + " is " + std::to_string(symbol_values[s]) +
                 "; the program was planned for " + std::to_string(symbols[s].min) + ".." +
                 std::to_string(symbols[s].max));
    }
  }
  for (size_t i = 0; i < exprs.size(); ++i) {
    const Expr& e = exprs[i];
    int64_t a = 0;
    int64_t b = 0;
    if (e.kind != ExprKind::kConst && e.kind != ExprKind::kSymbol) {
      a = values[static_cast<size_t>(e.a)];
      b = values[static_cast<size_t>(e.b)];
    }
    bool valid = true;
    int64_t v = 0;
    switch (e.kind) {
      case ExprKind::kConst:
        v = e.a;
        break;
      case ExprKind::kSymbol:
        v = symbol_values[e.a];
        break;
      case ExprKind::kAdd:
        valid = add(a, b, v);
        break;
      case ExprKind::kMul:
        valid = mul(a, b, v);
        break;
      case ExprKind::kDiv:
        valid = b > 0;
        if (valid) v = floor_div(a, b);
        break;
      case ExprKind::kMod:
        valid = b > 0;
        if (valid) v = a - floor_div(a, b) * b;
        break;
      case ExprKind::kMin:
        v = a < b ? a : b;
        break;
      case ExprKind::kMax:
        v = a > b ? a : b;
        break;
    }
    if (!valid || v > kHuge || v < -kHuge) {
      return bad("expression " + std::to_string(i) + " overflows or divides by zero");
    }
    values[i] = v;
  }
  return Status::ok();
}

Status check_parameters(Op op, int64_t n) {
  const OpInfo& info = kOpInfo[static_cast<size_t>(op)];
  if (n == info.n_params || (n == 0 && info.params_optional)) return Status::ok();
  std::string what = info.name;
  what += " takes " + std::to_string(info.n_params) + " parameters, got " + std::to_string(n);
  // OpInfo::description is a name, the sources and then the parameters, with a space between.
  const std::string words = info.description;
  const size_t sources = words.find(' ');
  const size_t names = words.find(' ', sources + 1);
  if (names != std::string::npos) what.append(":").append(words, names);
  return bad(what);
}

Status Program::check() const {
  for (const Symbol& s : symbols) {
    if (s.min < 0 || s.min > s.max || s.max > kHuge) {
      return bad("symbol " + s.name + " has bad bounds");
    }
  }
  for (size_t i = 0; i < exprs.size(); ++i) {
    if (Status s = check_expr(*this, i); !s.is_ok()) return s;
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i] < 0 || buffers[i] > kHuge) {
      return bad("buffer " + std::to_string(i) + " has a bad size");
    }
  }
  for (const TensorDecl& t : tensors) {
    if (Status s = check_tensor(*this, t); !s.is_ok()) return s;
  }
  for (double v : params) {
    if (std::isnan(v)) return bad("a parameter is not a number");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (Status s = check_step(*this, i); !s.is_ok()) return s;
  }
  return check_stages(*this);
}

}  // namespace weft
