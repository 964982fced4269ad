/* macOS: waits of libc++'s kind (__ulock); threads cannot be tied to processors. */
#include "platform/posix.h"
#include <sys/sysctl.h>

/* Of libSystem, without a public header: the waits under C++'s std::atomic::wait. */
extern int __ulock_wait(uint32_t operation, void *address, uint64_t value, uint32_t microseconds);
extern int __ulock_wake(uint32_t operation, void *address, uint64_t value);
enum { WS_COMPARE_AND_WAIT = 1, WS_WAKE_ALL = 0x100 };

static inline int ws_core(void) { return -1; }
static inline int ws_cores(void) {
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int)count : 1;
}

static inline void ws_wait_word(int *word, int old, int64_t ns) {
  const int64_t most = 0x7fffffff, us = ns / 1000 + 1;  /* 0 microseconds: no limit */
  __ulock_wait(WS_COMPARE_AND_WAIT, word, (uint32_t)old, ns < 0 ? 0 : (uint32_t)(us < most ? us : most));
}
static inline void ws_wake_word(int *word) { __ulock_wake(WS_COMPARE_AND_WAIT | WS_WAKE_ALL, word, 0); }

static inline int ws_has_ended(int pid) {
  struct kinfo_proc process;
  size_t bytes = sizeof process;
  int name[] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, pid};
  if (sysctl(name, 4, &process, &bytes, NULL, 0)) return 0;
  return bytes == 0 || process.kp_proc.p_stat == SZOMB;
}
