/* Python's configuration for macOS on 64-bit processors, where it differs from that of Linux for
   who includes Python.h: sizes and alignments are the same. */
#include "pyconfig_linux.h"

#define _DARWIN_C_SOURCE 1
#undef _POSIX_C_SOURCE
#undef _XOPEN_SOURCE
#undef HAVE_LINUX_TIPC_H
#undef HAVE_SYS_RANDOM_H
