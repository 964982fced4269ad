/* Ranks that are threads of one process: each reads the others' tensors where they lie. */
#define _GNU_SOURCE
#include "group_sums.h"
#include "runtime.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { SPINS = 2000, YIELDS = 200 };                  /* before a rank that waits looks at the clock, and sleeps a little */

typedef struct {
  int size, failed;
  int arrived, phase;                                 /* of the meeting of all ranks */
  const ws_share **shares;                            /* what each rank has brought */
  ws_group *members;
} team;

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wait until every rank is here. */
static int meet(ws_group *group) {
  team *t = group->engine;
  const int phase = __atomic_load_n(&t->phase, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) == t->size) {
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&t->phase, 1, __ATOMIC_ACQ_REL);
    return 0;
  }
  double deadline = 0;
  for (long turn = 0; __atomic_load_n(&t->phase, __ATOMIC_ACQUIRE) == phase; turn++) {
    if (turn < SPINS) continue;
    if (turn < SPINS + YIELDS) { sched_yield(); continue; }
    if (!deadline) deadline = seconds() + group->timeout;
    if (__atomic_load_n(&t->failed, __ATOMIC_ACQUIRE)) return t->failed;
    if (seconds() >= deadline) {
      __atomic_store_n(&t->failed, ETIMEDOUT, __ATOMIC_RELEASE);
      return ETIMEDOUT;
    }
    nanosleep(&(struct timespec){0, 20000}, NULL);
  }
  return 0;
}

static int bring(ws_group *group, const ws_share *shares) {
  ((team *)group->engine)->shares[group->rank] = shares;
  return meet(group);
}

/* The sum of elements first .. first + count - 1 of a tensor, on all ranks. */
static void add(ws_group *group, int share, long first, long count, void *to, int dtype) {
  const team *t = group->engine;
  const long bytes = ws_group_bytes(dtype);
  const void *from[WS_MAX_THREADS];
  for (int rank = 0; rank < t->size; rank++) from[rank] = (const char *)t->shares[rank][share].from + first * bytes;
  ws_tree_sum(to, from, count, t->size, dtype);
}

static int all_reduce(ws_group *group, const ws_share *shares, int count, int dtype) {
  const team *t = group->engine;
  const long bytes = ws_group_bytes(dtype), size = group->size;
  int error = bring(group, shares);
  for (int i = 0; i < count && !error; i++) {         /* each rank adds a part */
    const long lo = shares[i].count * group->rank / size, hi = shares[i].count * (group->rank + 1) / size;
    add(group, i, lo, hi - lo, (char *)shares[i].to + lo * bytes, dtype);
  }
  if (!error) error = meet(group);
  for (int i = 0; i < count && !error; i++)           /* and takes the others' */
    for (int rank = 0; rank < size; rank++) {
      const long lo = shares[i].count * rank / size, hi = shares[i].count * (rank + 1) / size;
      if (rank != group->rank)
        memcpy((char *)shares[i].to + lo * bytes, (char *)t->shares[rank][i].to + lo * bytes, (hi - lo) * bytes);
    }
  return error ? error : meet(group);
}

static int reduce_scatter(ws_group *group, const ws_share *shares, int count, int dtype) {
  int error = bring(group, shares);
  for (int i = 0; i < count && !error; i++)
    add(group, i, shares[i].count * group->rank, shares[i].count, shares[i].to, dtype);
  return error ? error : meet(group);
}

static int all_gather(ws_group *group, const ws_share *shares, int count, int dtype) {
  const team *t = group->engine;
  const long bytes = ws_group_bytes(dtype);
  int error = bring(group, shares);
  for (int i = 0; i < count && !error; i++)
    for (int rank = 0; rank < t->size; rank++)
      memmove((char *)shares[i].to + rank * shares[i].count * bytes, t->shares[rank][i].from, shares[i].count * bytes);
  return error ? error : meet(group);
}

static int broadcast(ws_group *group, const ws_share *shares, int count, int dtype) {
  const team *t = group->engine;
  int error = bring(group, shares);
  for (int i = 0; i < count && !error; i++)
    if (shares[i].to != t->shares[0][i].from)
      memmove(shares[i].to, t->shares[0][i].from, shares[i].count * ws_group_bytes(dtype));
  return error ? error : meet(group);
}

WS_EXPORT void ws_free_threads(ws_group *members) {
  if (!members) return;
  team *t = members->engine;
  free(t->shares), free(t), free(members);
}

/* The members of a group of threads, one behind the other; NULL where there is no memory. */
WS_EXPORT ws_group *ws_new_threads(int size, double timeout) {
  team *t = calloc(1, sizeof *t);
  ws_group *members = calloc(size, sizeof *members);
  const ws_share **shares = calloc(size, sizeof *shares);
  if (!t || !members || !shares || size > WS_MAX_THREADS) {
    free(t), free(members), free(shares);
    return NULL;
  }
  *t = (team){.size = size, .shares = shares, .members = members};
  for (int rank = 0; rank < size; rank++)
    members[rank] = (ws_group){.rank = rank, .size = size, .timeout = timeout, .all_reduce = all_reduce,
                               .reduce_scatter = reduce_scatter, .all_gather = all_gather, .broadcast = broadcast,
                               .engine = t};
  return members;
}
