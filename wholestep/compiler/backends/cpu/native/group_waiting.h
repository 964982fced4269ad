/* Waiting between ranks that are processes: a waiting rank spins, then yields, then sleeps for short intervals; at longer
   intervals it checks the timeout and whether the other processes are alive.

   In a mesh a rank waits for the ranks along one axis, which may themselves wait for ranks along the other axis.  The ranks
   of a machine therefore share a board in memory: on it each rank publishes for which rank it waits, a counter that shows
   that it is alive, and which rank it found dead.
   Invariant: a rank that waits for a dead rank, directly or through others, fails and names the dead one. */
#ifndef WS_GROUP_WAITING_H
#define WS_GROUP_WAITING_H
#include "group.h"
#include "group_messages.h"
#include "waiting.h"

/* The status that a rank publishes to the others of its machine, on its own cache line: `published` counts its exchanges,
   `left` is 1 after it has left the group.  In a mesh also: `waits` is 1 + the number of the rank that it waits for,
   `blames` 1 + the number of the rank that it found missing, with the errno << 32, and `looks` counts its checks.
   `what` describes the current and the previous exchange, as in `engine`; it must be equal on all ranks. */
typedef struct {
  _Alignas(64) uint64_t published;
  uint64_t left, waits, blames, looks, what[2];
} sign;

enum {
  ALONE = 64,                                         /* bytes of a `sign`, which precedes the slots of a window */
  SPINS = 2000,                                       /* reads of shared memory before a rank yields its core: about 20 us */
  CALLS = 80,                                         /* checks of messages before a rank yields: each is a system call */
  YIELDS = 4000,                                      /* yields before a rank sleeps between checks; none on a busy machine */
  NAP_NS = 50000,                                     /* duration of one sleep */
  PROBES = 200,                                       /* sleeps between two checks whether the awaited process is alive */
  SILENCE = 1                                         /* seconds without a check after which a rank counts as not waiting */
};

/* The engine of one rank.  A window is a `sign` and 2 x size slots: two sets of slots that alternate, so that a rank may
   write the pieces of the next exchange while others still read the pieces of the last one. */
typedef struct {
  ws_group group;
  messages carrier;
  char **windows;                                     /* shared memory of each rank; NULL: they exchange messages */
  const int *pids;                                    /* process id of each rank; 0 if it is on another machine */
  const int *numbers;                                 /* number of each rank in the mesh */
  char **board;                                       /* `sign` of each rank of the mesh, by number; NULL: not a mesh */
  int all;                                            /* ranks of the mesh */
  long slot;                                          /* bytes per slot */
  uint64_t published, turns;
  uint64_t what;                                      /* kind, dtype and elements of the running collective */
  char *received, *packed;                            /* buffers of `size` slots each, for messages */
  request *requests;                                  /* 2 x size: receives, then sends */
  int spins;                                          /* checks before a rank yields; 0 if there are more ranks than cores */
  int missing;                                        /* number of the rank that did not arrive or has ended */
  uint64_t sent;                                      /* bytes sent to other ranks */
} engine;

typedef struct { int looks, slept; double deadline; } patience;

static double now(void) { return 1e-9 * (double)ws_now_ns(); }

static sign *shown_by(const engine *e, int number) { return (sign *)e->board[number]; }
static sign *own_sign(const engine *e) { return shown_by(e, e->numbers[e->group.rank]); }

static void show(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static uint64_t seen(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void look_again(const engine *e) { show(&own_sign(e)->looks, own_sign(e)->looks + 1); }

/* The rank that a missing rank blames or waits for, in the encoding of `sign`; 0: none.  It is read only after the missing
   rank has checked again, since a stopped process leaves an old value on the board. */
static uint64_t awaited_by(const engine *e, const sign *theirs) {
  const uint64_t looks = seen(&theirs->looks);
  const double deadline = now() + SILENCE;
  while (seen(&theirs->looks) == looks && !seen(&theirs->blames)) {
    if (now() > deadline) return 0;
    look_again(e);                                    /* other ranks may be waiting for this rank's counter */
    ws_nap(NAP_NS);
  }
  return seen(&theirs->blames) ? seen(&theirs->blames) : seen(&theirs->waits);
}

/* The rank that caused a missing rank not to arrive: follows the ranks that each one waits for or blames; a rank that is
   blamed ends the search, and `error` becomes the errno published with it. */
static int to_blame(const engine *e, int *error, int number) {
  int found = number;
  for (int hop = 0; hop < e->all; hop++) {
    const sign *theirs = shown_by(e, found);
    const uint64_t next = *error == ETIMEDOUT ? awaited_by(e, theirs) : seen(&theirs->blames);
    if (!next) return found;
    found = (int)(uint32_t)next - 1;
    if (!(next >> 32)) continue;
    *error = (int)(next >> 32);
    return found;
  }
  return number;
}

static int fail(engine *e, int error, int rank) {
  if (e->group.failed) return e->group.failed;
  e->missing = e->numbers[rank];
  if (e->board) {
    e->missing = to_blame(e, &error, e->missing);
    show(&own_sign(e)->blames, (uint64_t)error << 32 | ((uint64_t)e->missing + 1));
  }
  return e->group.failed = error;
}

/* One unsuccessful check for `rank`: spin, yield or sleep.  Returns 0, or an errno if the rank has ended or the timeout has
   expired; the caller must check once more before it fails, since the data may have arrived during the sleep. */
static int wait_on(const engine *e, patience *p, int rank) {
  if (p->looks++ < e->spins) {
    ws_pause();
    return 0;
  }
  const int64_t begin = ws_now_ns();
  if (p->looks == e->spins + 1) p->deadline = 1e-9 * (double)begin + e->group.timeout;
  if (p->looks < e->spins + YIELDS && !is_busy(begin)) {
    ws_yield();
    end_turn(begin);
    return 0;
  }
  p->slept = 1;
  if (e->board) show(&own_sign(e)->waits, (uint64_t)e->numbers[rank] + 1), look_again(e);
  ws_nap(NAP_NS);
  if (p->looks % PROBES == 0) {
    if (e->pids[rank] && ws_has_ended(e->pids[rank])) return EPIPE;
    if (now() > p->deadline) return ETIMEDOUT;
  }
  return 0;
}

/* Publish that this rank no longer waits. */
static void come_through(engine *e, const patience *wait) {
  if (e->board && wait->slept) show(&own_sign(e)->waits, 0);
}
#endif
