/* What the runtime asks of a processor; each file of this name in x86/, arm64/ and portable/ implements it.

   void ws_pause(void)                            a hint in a loop that waits for another core
   ws_fp_mode ws_flush_denormals(void)            subnormals count as zero in this thread; returns the mode before
   void ws_restore_denormals(ws_fp_mode)
   void ws_stream_line(char *to, const char *from), ws_finish_streams(void)   copy 64 bytes past the caches

   Inside a run subnormals count as zero, as in XLA: a memorized batch must not become slow.  The vectors and
   instructions of kernels are chosen by vectors.h. */
#ifndef WS_PROCESSOR_H
#define WS_PROCESSOR_H
#include <stdint.h>
#if defined(__x86_64__)
#include "x86/processor.h"
#elif defined(__aarch64__)
#include "arm64/processor.h"
#else
#include "portable/processor.h"
#endif
#endif
