#include "blob.h"

#include <cstring>
#include <memory>

#include "program_generated.h"
#include "quants/interleave.h"

namespace weft::et {

namespace {

namespace fb = weft::blob;

constexpr uint16_t kVersion = 2;
constexpr size_t kMaxDims = 16;

std::string text(const flatbuffers::String* s) { return s == nullptr ? std::string() : s->str(); }

Size size_of(const fb::Size& s) { return {s.value(), s.expr()}; }

Status bad(const std::string& what) { return Status::invalid(what); }

// Verifiers of older FlatBuffers do not check the alignment of structs.
template <typename T>
bool is_aligned(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr || reinterpret_cast<uintptr_t>(vector->Data()) % alignof(int64_t) == 0;
}

bool is_layout(int8_t number) {
  return number >= 0 && number <= static_cast<int8_t>(Layout::kLevels);
}

Status read_symbols(const fb::Program& p, Blob& out) {
  for (const fb::Symbol* s : *p.symbols()) {
    out.program.symbols.push_back({s->name()->str(), s->min(), s->max()});
    out.symbols.push_back({s->input(), s->dim(), s->mul(), s->add()});
  }
  if (!is_aligned(p.exprs())) return bad("the expressions are damaged");
  for (const fb::Expr* e : *p.exprs()) {
    out.program.exprs.push_back({static_cast<ExprKind>(e->kind()), e->a(), e->b()});
  }
  return Status::ok();
}

Status read_buffers(const fb::Program& p, Blob& out) {
  for (const fb::Buffer* b : *p.buffers()) {
    BufferInfo info;
    if (b->memory() < fb::Memory::MIN || b->memory() > fb::Memory::MAX || !is_layout(b->stored())) {
      return bad("buffer " + std::to_string(out.buffers.size()) + " has an unknown kind or layout");
    }
    info.memory = static_cast<Memory>(b->memory());
    info.key = text(b->key());
    info.name = text(b->name());
    info.stored = static_cast<Layout>(b->stored());
    if (info.memory == Memory::kConstant && info.key.empty()) {
      return bad("buffer " + std::to_string(out.buffers.size()) + " is constant but has no key");
    }
    out.program.buffers.push_back(b->size());
    out.buffers.push_back(std::move(info));
  }
  return Status::ok();
}

Status read_tensors(const fb::Program& p, Blob& out) {
  for (const fb::Tensor* t : *p.tensors()) {
    TensorDecl decl;
    decl.name = t->name()->str();
    if (t->ne()->size() != 4 || t->nb()->size() != 4 || !is_aligned(t->ne()) ||
        !is_aligned(t->nb()) || !is_layout(t->layout())) {
      return bad("tensor " + decl.name +
                 " does not have four sizes and strides, or has an unknown layout");
    }
    if (t->type() < 0 || t->type() >= kDTypeCount) {
      return bad("tensor " + decl.name + " has unknown type " + std::to_string(t->type()));
    }
    decl.type = static_cast<DType>(t->type());
    decl.layout = static_cast<Layout>(t->layout());
    decl.buffer = t->buffer();
    for (uint32_t d = 0; d < 4; ++d) {
      decl.ne[d] = size_of(*t->ne()->Get(d));
      decl.nb[d] = size_of(*t->nb()->Get(d));
    }
    decl.offset = size_of(*t->offset());
    out.program.tensors.push_back(std::move(decl));
  }
  return Status::ok();
}

// The op of this name; kNone when this build has none.
Op op_called(const flatbuffers::String& name) {
  for (size_t i = 1; i < static_cast<size_t>(Op::kCount); ++i) {
    if (std::strcmp(kOpInfo[i].name, name.c_str()) == 0) return static_cast<Op>(i);
  }
  return Op::kNone;
}

Status read_steps(const fb::Program& p, Blob& out) {
  std::vector<Op> ops;
  for (const flatbuffers::String* name : *p.ops()) {
    ops.push_back(op_called(*name));
    if (ops.back() == Op::kNone) {
      return bad("op " + name->str().substr(0, 64) + " is unknown to this build of weft");
    }
  }
  for (const fb::Step* s : *p.steps()) {
    StepDecl step;
    const std::string where = "step " + std::to_string(out.program.steps.size());
    if (s->op() < 0 || static_cast<size_t>(s->op()) >= ops.size()) return bad(where + " has no op");
    if (s->src()->size() > kMaxSrc) return bad(where + " has too many sources");
    if (!is_aligned(s->params())) return bad(where + " has damaged parameters");
    step.op = ops[static_cast<size_t>(s->op())];
    step.dst = s->dst();
    for (uint32_t i = 0; i < kMaxSrc; ++i) {
      step.src[i] = i < s->src()->size() ? s->src()->Get(i) : -1;
    }
    step.first_param = static_cast<int32_t>(out.program.params.size());
    if (s->params() != nullptr) {
      step.n_params = static_cast<int32_t>(s->params()->size());
      out.program.params.insert(out.program.params.end(), s->params()->begin(), s->params()->end());
    }
    out.program.steps.push_back(step);
  }
  for (const fb::Stage* s : *p.stages()) out.program.stages.push_back({s->begin(), s->end()});
  return Status::ok();
}

// Reads sizes; refuses those of expressions that do not exist.
bool read_sizes(const flatbuffers::Vector<const fb::Size*>* sizes, const Program& program,
                std::vector<Size>& out) {
  if (sizes == nullptr) return true;
  if (sizes->size() > kMaxDims || !is_aligned(sizes)) return false;
  for (const fb::Size* s : *sizes) {
    if (s->expr() < -1 || s->expr() >= static_cast<int64_t>(program.exprs.size())) return false;
    out.push_back(size_of(*s));
  }
  return true;
}

Status read_values(const flatbuffers::Vector<flatbuffers::Offset<fb::Value>>& values,
                   const Program& program, bool is_output, std::vector<Value>& out) {
  for (const fb::Value* v : values) {
    Value value;
    value.name = v->name()->str();
    value.tensor = v->tensor();
    value.scalar_type = v->scalar_type();
    const bool is_tensor = value.scalar_type >= 0;
    if (!read_sizes(v->dims(), program, value.dims)) {
      return bad("argument " + value.name + " has too many sizes, or damaged ones");
    }
    const auto n = static_cast<int64_t>(program.tensors.size());
    const bool fits = value.tensor == -1 ? !(is_tensor && is_output) : is_tensor;
    if (!fits || value.tensor < -1 || value.tensor >= n || value.scalar_type < kIgnored ||
        (value.scalar_type == kInteger && value.dims.size() != 1)) {
      return bad("argument " + value.name + " names a tensor that does not exist");
    }
    if (value.tensor >= 0 &&
        is_quantized(program.tensors[static_cast<size_t>(value.tensor)].type)) {
      return bad("argument " + value.name + " is of a block type");
    }
    out.push_back(std::move(value));
  }
  return Status::ok();
}

Status read_events(const fb::Program& p, Blob& out) {
  const Program& program = out.program;
  for (const fb::Step* s : *p.steps()) {
    Event event;
    event.name = text(s->name());
    for (uint32_t i = 0; s->values() != nullptr && i < s->values()->size(); ++i) {
      const fb::NodeValue& v = *s->values()->Get(i);
      NodeValue value;
      value.scalar_type = v.scalar_type();
      bool fits = v.step() >= 0 && static_cast<size_t>(v.step()) < program.steps.size() &&
                  value.scalar_type >= 0 && read_sizes(v.dims(), program, value.dims) &&
                  read_sizes(v.strides(), program, value.strides);
      fits = fits && (value.strides.empty() || value.strides.size() == value.dims.size());
      if (v.offset() != nullptr) {
        value.offset = size_of(*v.offset());
        fits = fits && value.offset.expr >= -1 &&
               value.offset.expr < static_cast<int64_t>(program.exprs.size());
      }
      if (!fits) return bad("step " + std::to_string(out.events.size()) + " has a damaged value");
      value.step = static_cast<size_t>(v.step());
      event.values.push_back(std::move(value));
    }
    out.events.push_back(std::move(event));
  }
  return Status::ok();
}

Status check_symbols(const Blob& blob) {
  for (size_t i = 0; i < blob.symbols.size(); ++i) {
    const SymbolSource& source = blob.symbols[i];
    const std::string name = "symbol " + blob.program.symbols[i].name;
    if (source.input < 0 || source.input >= static_cast<int64_t>(blob.inputs.size())) {
      return bad(name + " is read from an input that does not exist");
    }
    const Value& input = blob.inputs[static_cast<size_t>(source.input)];
    const bool fits = source.dim < 0 ? input.scalar_type == kInteger
                                     : input.scalar_type >= 0 &&
                                           source.dim < static_cast<int64_t>(input.dims.size());
    if (!fits || source.mul < 1) return bad(name + " is read from a size that does not exist");
  }
  return Status::ok();
}

// Checks that no step writes to a constant or an input, and that no two inputs share a buffer.
Status check_roles(const Blob& blob) {
  const auto buffer_of = [&](int32_t tensor) {
    return static_cast<size_t>(blob.program.tensors[static_cast<size_t>(tensor)].buffer);
  };
  for (const StepDecl& step : blob.program.steps) {
    const Memory memory = blob.buffers[buffer_of(step.dst)].memory;
    if (memory == Memory::kConstant || memory == Memory::kInput) {
      return bad("a step writes to " + blob.program.tensors[static_cast<size_t>(step.dst)].name +
                 ", which is constant or an input");
    }
  }
  std::vector<int> owners(blob.buffers.size(), 0);
  for (const Value& input : blob.inputs) {
    if (input.tensor < 0) continue;
    const size_t buffer = buffer_of(input.tensor);
    if (blob.buffers[buffer].memory != Memory::kInput || owners[buffer]++ != 0) {
      return bad("input " + input.name + " has no buffer of its own");
    }
  }
  return Status::ok();
}

// Until version 1, panels had the codes of all types as files have them (quants/whole_codes.h).
bool has_older_panels(const Blob& blob) {
  for (const TensorDecl& t : blob.program.tensors) {
    const bool panels = blob.buffers[static_cast<size_t>(t.buffer)].stored == Layout::kInterleaved;
    const InterleavedFormat* format = panels ? interleaved_format(t.type) : nullptr;
    if (format != nullptr && format->to_panel != nullptr) return true;
  }
  return false;
}

Status bad_version(uint16_t version) {
  return bad("the blob has version " + std::to_string(version) + ", this build reads " +
             std::to_string(kVersion) + "; export the model again");
}

Status read_program(const fb::Program& p, Blob& out) {
  if (p.version() < 1 || p.version() > kVersion) return bad_version(p.version());
  if (Status s = read_symbols(p, out); !s.is_ok()) return s;
  if (Status s = read_buffers(p, out); !s.is_ok()) return s;
  if (Status s = read_tensors(p, out); !s.is_ok()) return s;
  if (Status s = read_steps(p, out); !s.is_ok()) return s;
  if (Status s = out.program.check(); !s.is_ok()) return s;
  if (p.version() < 2 && has_older_panels(out)) return bad_version(p.version());
  if (Status s = read_values(*p.inputs(), out.program, false, out.inputs); !s.is_ok()) return s;
  if (Status s = read_values(*p.outputs(), out.program, true, out.outputs); !s.is_ok()) return s;
  if (Status s = read_events(p, out); !s.is_ok()) return s;
  if (Status s = check_symbols(out); !s.is_ok()) return s;
  if (Status s = check_roles(out); !s.is_ok()) return s;
  out.threads = p.threads();
  out.share_state = p.share_state();
  return Status::ok();
}

}  // namespace

Status read_blob(const void* data, size_t size, Blob& out) {
  // FlatBuffers loads words in place, so the bytes must be aligned.
  std::unique_ptr<uint64_t[]> aligned;
  if (reinterpret_cast<uintptr_t>(data) % alignof(uint64_t) != 0) {
    aligned = std::make_unique<uint64_t[]>(size / sizeof(uint64_t) + 1);
    std::memcpy(aligned.get(), data, size);
    data = aligned.get();
  }
  flatbuffers::Verifier verifier(static_cast<const uint8_t*>(data), size);
  if (!fb::VerifyProgramBuffer(verifier)) return bad("the blob is damaged");
  return read_program(*fb::GetProgram(data), out);
}

}  // namespace weft::et
