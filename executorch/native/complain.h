// Messages for the log of the runtime.
#pragma once

#include <executorch/runtime/platform/log.h>

#include <string>

namespace weft::et {

// Logs an error. Names in damaged files may be any bytes, but the runtime's log is text.
inline void complain(std::string message) {
  for (char& c : message) {
    if (c < ' ' || c > '~') c = '?';
  }
  ET_LOG(Error, "weft: %s", message.c_str());
}

}  // namespace weft::et
