// Error messages in the log of the runtime.
#pragma once

#include <executorch/runtime/platform/log.h>

#include <string>

namespace weft::et {

// Logs an error. Bytes that are not text, which names in damaged files may have, become "?".
inline void complain(std::string message) {
  for (char& c : message) {
    if (c < ' ' || c > '~') c = '?';
  }
  ET_LOG(Error, "weft: %s", message.c_str());
}

}  // namespace weft::et
