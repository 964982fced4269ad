/* Waiting between threads on cores that other processes may want, too: spin, then sleep on a futex.

   A thread that spins burns the time of one that could run; one that yields on a busy machine gives away a full time
   slice (4 ms), and another one when it is back: next to two busy processes steps took forty times as long.  A sleeping
   thread keeps its share and is scheduled first when it wakes, but waking takes 5 to 50 us.  So a waiting thread looks
   at the clock between turns of spinning.  A turn that took long shows that another process had the core: from then on,
   for a while, waiting threads sleep early. */
#ifndef WS_WAITING_H
#define WS_WAITING_H
#include <sched.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

enum {
  LONG_TURN_NS = 500000,                              /* a longer turn (5 us of spinning, or a yield): machine is busy */
  BUSY_NS = 250000000                                 /* how long the machine then counts as busy */
};

static long busy_until;

static inline long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

static inline int is_busy(long now) { return now < __atomic_load_n(&busy_until, __ATOMIC_RELAXED); }

/* Ends a turn that began at `begin`; a long one marks the machine as busy. */
static inline long end_turn(long begin) {
  const long now = now_ns();
  if (now - begin > LONG_TURN_NS) __atomic_store_n(&busy_until, now + BUSY_NS, __ATOMIC_RELAXED);
  return now;
}

/* A counter that threads wait on.  `asleep` saves the waking thread a system call if nobody sleeps. */
typedef struct {
  int value;
  int asleep;
} counter;

static inline int load(const counter *c) { return __atomic_load_n(&c->value, __ATOMIC_ACQUIRE); }

/* Sleep while the value is `old`, at most `limit` (NULL: no limit); may return early. */
static inline void sleep_while(counter *c, int old, const struct timespec *limit) {
#ifdef __linux__
  __atomic_add_fetch(&c->asleep, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &c->value, FUTEX_WAIT_PRIVATE, old, limit, NULL, 0);
  __atomic_sub_fetch(&c->asleep, 1, __ATOMIC_SEQ_CST);
#else
  (void)c, (void)old, (void)limit;
  nanosleep(&(struct timespec){0, 50000}, NULL);
#endif
}

/* Sequentially consistent with the sleeper's increment: either it sees the new value, or this thread sees it asleep. */
static inline void advance(counter *c) {
  __atomic_add_fetch(&c->value, 1, __ATOMIC_SEQ_CST);
#ifdef __linux__
  if (__atomic_load_n(&c->asleep, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &c->value, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
#endif
}
#endif
