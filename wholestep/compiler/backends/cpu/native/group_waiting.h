/* How a rank that is a process waits for the others: it spins, yields, then sleeps for short intervals, and from time to
   time checks whether the other processes are alive, and the clock.

   In a mesh a rank waits for the ranks along one axis, which may themselves wait for ranks along the other.  So the ranks of
   a machine publish on a board in shared memory whom they wait for, that they still check, and whom they found dead.
   Invariant: a rank that waits for a dead one, directly or through others, fails and names it. */
#ifndef WS_GROUP_WAITING_H
#define WS_GROUP_WAITING_H
#include "group.h"
#include "group_messages.h"
#include "waiting.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* What a rank shows the others of its machine, in a line of its own: how often it has published, and that it has left.
   In a grid, too: whom it waits for (1 + a number), whom it found missing (error << 32 beside), that it looks again.
   `what` it exchanges, in turns as its slots: all are to exchange the same. */
typedef struct {
  _Alignas(64) uint64_t published;
  uint64_t left, waits, blames, looks, what[2];
} sign;

enum {
  ALONE = 64,                                         /* bytes: of a sign, before the slots of a window */
  SPINS = 2000,                                       /* looks at memory before others may have the core, some 20 us */
  CALLS = 80,                                         /* the same of messages: each look is a system call */
  YIELDS = 4000,                                      /* and before we sleep between looks; at once on a busy machine */
  NAP_NS = 50000,
  PROBES = 200,                                       /* naps between two looks whether the others live */
  SILENCE = 1                                         /* seconds without a look after which a rank waits for nobody */
};

/* A rank's engine.  A window is a sign and 2 x size slots; two sets of them take turns, so that a rank may write the
   next pieces while others still read the last. */
typedef struct {
  ws_group group;
  messages carrier;
  char **windows;                                     /* of each rank; NULL where they have no memory in common */
  const int *pids;                                    /* of each rank; 0 where it cannot be seen from here */
  const int *numbers;                                 /* of each rank among all of a grid */
  char **board;                                       /* signs of all of a grid by number; NULL where nobody looks */
  int all;                                            /* of them */
  long slot;                                          /* bytes */
  uint64_t published, turns;
  uint64_t what;                                      /* kind, dtype and elements of the collective that is under way */
  char *received, *packed;                            /* size slots each, for messages */
  request *requests;                                  /* 2 x size */
  int spins;                                          /* none where there are more ranks than cores */
  int missing;                                        /* the number of who did not come, or was lost */
  uint64_t sent;                                      /* bytes that others were given */
} engine;

typedef struct { int looks, slept; double deadline; } patience;

static double now(void) { return 1e-9 * (double)now_ns(); }

/* A process that is gone, or waits to be buried. */
static int is_dead(int pid) {
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
  const char *state = strrchr(text, ')');             /* the name before it may hold anything */
  return state && state[1] == ' ' && (state[2] == 'Z' || state[2] == 'X');
}

static sign *shown_by(const engine *e, int number) { return (sign *)e->board[number]; }
static sign *own_sign(const engine *e) { return shown_by(e, e->numbers[e->group.rank]); }

static void show(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static uint64_t seen(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void look_again(const engine *e) { show(&own_sign(e)->looks, own_sign(e)->looks + 1); }

/* Whom a rank that did not come blames, or waits for; 0: nobody.  One that has been stopped shows what it showed last. */
static uint64_t awaited_by(const engine *e, const sign *theirs) {
  const uint64_t looks = seen(&theirs->looks);
  const double deadline = now() + SILENCE;
  while (seen(&theirs->looks) == looks && !seen(&theirs->blames)) {
    if (now() > deadline) return 0;
    look_again(e);                                    /* others may look at us */
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
  }
  return seen(&theirs->blames) ? seen(&theirs->blames) : seen(&theirs->waits);
}

/* Who is to blame where a rank did not come: it, whom it blames (`error` is then theirs), or whom it waits for. */
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

/* Once more without what we wait for: 0 while there is hope for `rank`, else why there is none unless it has come in the
   meantime: before it left, or while we slept. */
static int wait_on(const engine *e, patience *p, int rank) {
  if (p->looks++ < e->spins) {
    PAUSE();
    return 0;
  }
  const long begin = now_ns();
  if (p->looks == e->spins + 1) p->deadline = 1e-9 * (double)begin + e->group.timeout;
  if (p->looks < e->spins + YIELDS && !is_busy(begin)) {
    sched_yield();
    end_turn(begin);
    return 0;
  }
  p->slept = 1;
  if (e->board) show(&own_sign(e)->waits, (uint64_t)e->numbers[rank] + 1), look_again(e);
  nanosleep(&(struct timespec){0, NAP_NS}, NULL);
  if (p->looks % PROBES == 0) {
    if (e->pids[rank] && is_dead(e->pids[rank])) return EPIPE;
    if (now() > p->deadline) return ETIMEDOUT;
  }
  return 0;
}

/* It waits for nobody. */
static void come_through(engine *e, const patience *wait) {
  if (e->board && wait->slept) show(&own_sign(e)->waits, 0);
}
#endif
