// The result of a call that can fail: no exceptions cross the core's boundary.
#pragma once

#include <string>
#include <utility>

namespace weft {

enum class Code {
  kOk,
  kInvalid,  // a program or argument that breaks a rule
  kAborted,  // stopped because the caller asked for it
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status ok() { return Status(); }
  static Status invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }
  static Status aborted() { return Status(Code::kAborted, "the run was stopped"); }

  bool is_ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace weft
