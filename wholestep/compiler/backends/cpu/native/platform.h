/* What the runtime asks of an operating system, and nothing else: each file in platform/ implements all of it.

   clock       int64_t ws_now_ns(void)                          monotonic
   processors  int ws_cores(void), ws_core(void)                usable by this process; the current one, or -1
   waiting     void ws_yield(void), ws_nap(int64_t ns)
               void ws_wait_word(int *word, int old, int64_t ns)  sleep while *word == old; ns < 0: no limit; may return early
               void ws_wake_word(int *word)                     wake all threads that sleep on it
   locks       ws_mutex, WS_MUTEX (its initial value), ws_lock, ws_unlock
   threads     WS_THREAD_LOCAL, ws_thread, WS_THREAD (declares a body), WS_THREAD_END (ends it)
               int ws_start_thread(ws_thread *, body, argument) 0 or an errno; signals stay with Python's own threads
               void ws_detach_thread(ws_thread), ws_join_thread(ws_thread)
   loading     WS_AT_LOAD (a function that runs when the library is loaded)
   forks       void ws_at_fork(before, in_parent, in_child)     nothing where processes cannot fork
   processes   int ws_has_ended(int pid)                        a zombie counts as ended
   libc        memcpy, memmove, memset, and the error numbers EINVAL, EDEADLK, EDOM and ETIMEDOUT

   Memory, files and loading of code are Python's part: wholestep/platforms.  A program without Python and without an
   operating system (WS_FREESTANDING) has one thread and no clock. */
#ifndef WS_PLATFORM_H
#define WS_PLATFORM_H
#include "ws.h"

#if defined(WS_FREESTANDING)
#include "platform/none.h"
#elif defined(__linux__)
#include "platform/linux.h"
#elif defined(__APPLE__)
#include "platform/macos.h"
#elif defined(_WIN32)
#include "platform/windows.h"
#else
#error "no platform: expected Linux, macOS or Windows; define WS_FREESTANDING for a program without an operating system"
#endif
#endif
