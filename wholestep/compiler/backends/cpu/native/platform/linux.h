/* Linux: futexes, the processors of the affinity mask, processes in /proc. */
#include "platform/posix.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>

static inline int ws_core(void) { return sched_getcpu(); }
static inline int ws_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int)count : 1;
}

static inline void ws_wait_word(int *word, int old, int64_t ns) {
  const struct timespec limit = {ns / 1000000000, ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, ns < 0 ? NULL : &limit, NULL, 0);
}
static inline void ws_wake_word(int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0); }

static inline int ws_has_ended(int pid) {
  char path[32] = "/proc/", text[512];
  int end = 6, digits = 1;
  for (int rest = pid; rest >= 10; rest /= 10) digits++;
  for (int i = digits - 1, rest = pid; i >= 0; i--, rest /= 10) path[end + i] = (char)('0' + rest % 10);
  strcpy(path + end + digits, "/stat");
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 1;
  text[length] = 0;
  const char *state = strrchr(text, ')');             /* the process name before it may contain any character */
  return state && state[1] == ' ' && (state[2] == 'Z' || state[2] == 'X');
}
