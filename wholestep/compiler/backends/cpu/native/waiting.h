/* Waiting between threads on cores that other processes may want, too: spin, then sleep.

   A thread that spins burns the time of one that could run; one that yields on a busy machine gives away a full time
   slice (4 ms), and another one when it is back: next to two busy processes steps took forty times as long.  A sleeping
   thread keeps its share and is scheduled first when it wakes, but waking takes 5 to 50 us.  So a waiting thread looks
   at the clock between turns of spinning.  A turn that took long shows that another process had the core: from then on,
   for a while, waiting threads sleep early. */
#ifndef WS_WAITING_H
#define WS_WAITING_H
#include "platform.h"
#include "processor.h"

enum {
  LONG_TURN_NS = 500000,                              /* a longer turn (5 us of spinning, or a yield): machine is busy */
  BUSY_NS = 250000000                                 /* how long the machine then counts as busy */
};

static int64_t busy_until;

static inline int is_busy(int64_t now) { return now < __atomic_load_n(&busy_until, __ATOMIC_RELAXED); }

/* Ends a turn that began at `begin`; a long one marks the machine as busy. */
static inline int64_t end_turn(int64_t begin) {
  const int64_t now = ws_now_ns();
  if (now - begin > LONG_TURN_NS) __atomic_store_n(&busy_until, now + BUSY_NS, __ATOMIC_RELAXED);
  return now;
}

/* A counter that threads wait on.  `asleep` saves the waking thread a system call if no thread sleeps. */
typedef struct {
  int value;
  int asleep;
} counter;

static inline int load(const counter *c) { return __atomic_load_n(&c->value, __ATOMIC_ACQUIRE); }

/* Sleep while the value is `old`, at most `ns` (negative: no limit); may return early. */
static inline void sleep_while(counter *c, int old, int64_t ns) {
  __atomic_add_fetch(&c->asleep, 1, __ATOMIC_SEQ_CST);
  ws_wait_word(&c->value, old, ns);
  __atomic_sub_fetch(&c->asleep, 1, __ATOMIC_SEQ_CST);
}

/* Sequentially consistent with the sleeper's increment: either it sees the new value, or this thread sees it asleep. */
static inline void advance(counter *c) {
  __atomic_add_fetch(&c->value, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&c->asleep, __ATOMIC_SEQ_CST)) ws_wake_word(&c->value);
}
#endif
