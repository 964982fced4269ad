/* Collectives of ranks that are threads of one process: each rank reads the tensors of the others in place.

   A collective has four steps: each rank publishes its tensors, waits at a barrier, reads the tensors of the others, and
   waits at a second barrier, after which every rank may overwrite its own tensors. */
#include "group_sums.h"
#include "runtime.h"
#include "waiting.h"
#include <stdlib.h>

enum {
  SPINS = 2000,
  YIELDS = 200,                                       /* yields before a waiting rank checks for failures and sleeps */
  LOOK_NS = 10000000                                  /* time between two checks of a sleeping rank */
};

/* The ranks along one axis of the mesh, with their barrier. */
typedef struct {
  int size;
  int arrived;                                        /* ranks that have reached the current barrier */
  counter phase;
  int *failed;                                        /* the error number of the mesh, shared by all of its teams */
  const ws_share **shares;                            /* the tensors that each rank has published */
} team;

/* The mesh of all ranks: its teams along the data axis, then those along the model axis, and their members. */
typedef struct {
  int failed;
  team *teams;
  const ws_share **shares;
  ws_group members[];
} grid;

/* Wait for a short time at a barrier that is not complete; returns 0, or the error number if a rank failed or the timeout
   expired. */
static int wait_on(const ws_group *group, int phase, double *deadline) {
  team *t = group->engine;
  const int failed = __atomic_load_n(t->failed, __ATOMIC_ACQUIRE);
  const double now = 1e-9 * (double)ws_now_ns();
  if (!*deadline) *deadline = now + group->timeout;
  if (failed) return failed;
  if (now >= *deadline) {
    __atomic_store_n(t->failed, ETIMEDOUT, __ATOMIC_RELEASE);
    return ETIMEDOUT;
  }
  sleep_while(&t->phase, phase, LOOK_NS);
  return 0;
}

/* The barrier: wait until every rank of the team has called it. */
static int meet(ws_group *group) {
  team *t = group->engine;
  const int phase = load(&t->phase);
  if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) == t->size) {
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    advance(&t->phase);
    return 0;
  }
  double deadline = 0;
  int failed = 0;
  for (long turn = 0; load(&t->phase) == phase && !failed; turn++) {
    if (turn < SPINS) continue;
    const int64_t begin = ws_now_ns();
    if (turn >= SPINS + YIELDS || is_busy(begin)) failed = wait_on(group, phase, &deadline);
    else ws_yield(), end_turn(begin);
  }
  return failed;
}

/* Publish this rank's tensors, and wait until every rank has published its own. */
static int bring(ws_group *group, const ws_share *shares) {
  ((team *)group->engine)->shares[group->rank] = shares;
  return meet(group);
}

/* Add elements first .. first + count - 1 of a tensor over all ranks. */
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
  for (int i = 0; i < count && !error; i++) {         /* each rank adds one part */
    const long lo = shares[i].count * group->rank / size, hi = shares[i].count * (group->rank + 1) / size;
    add(group, i, lo, hi - lo, (char *)shares[i].to + lo * bytes, dtype);
  }
  if (!error) error = meet(group);
  for (int i = 0; i < count && !error; i++)           /* each rank copies the parts that the others added */
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

/* The group of one rank in a team; without a team, the rank is alone in its group. */
static ws_group member(team *t, int place, double timeout, ws_group *model) {
  return (ws_group){.rank = place, .size = t ? t->size : 1, .timeout = timeout, .all_reduce = all_reduce,
                    .reduce_scatter = reduce_scatter, .all_gather = all_gather, .broadcast = broadcast, .engine = t,
                    .model = model};
}

WS_EXPORT void ws_free_threads(ws_group *members) {
  if (!members) return;
  grid *g = (grid *)((char *)members - offsetof(grid, members));
  free(g->teams), free(g->shares), free(g);
}

/* The groups of a mesh of threads, one per rank, along the data axis; NULL if memory does not suffice.  If the mesh has a
   model axis, one group per rank along the model axis follows, then one group per rank for programs in which every rank
   gets all rows: it has the model axis only. */
WS_EXPORT ws_group *ws_new_threads(int data, int model, double timeout) {
  const int size = data * model, axes = model > 1 ? 2 : 1;
  grid *g = calloc(1, sizeof *g + (size_t)(model > 1 ? 3 * size : size) * sizeof *g->members);
  team *teams = calloc((size_t)(data + model), sizeof *teams);
  const ws_share **shares = calloc((size_t)(axes * size), sizeof *shares);
  if (!g || !teams || !shares || size > WS_MAX_THREADS) {
    free(g), free(teams), free(shares);
    return NULL;
  }
  g->teams = teams, g->shares = shares;
  for (int m = 0; m < model; m++) teams[m] = (team){.size = data, .failed = &g->failed, .shares = shares + m * data};
  for (int d = 0; d < data && model > 1; d++)
    teams[model + d] = (team){.size = model, .failed = &g->failed, .shares = shares + size + d * model};
  for (int rank = 0; rank < size; rank++) {
    const int d = rank / model, m = rank % model;
    ws_group *beside = model > 1 ? &g->members[size + rank] : NULL;
    g->members[rank] = member(&teams[m], d, timeout, beside);
    if (!beside) continue;
    *beside = member(&teams[model + d], m, timeout, NULL);
    g->members[2 * size + rank] = member(NULL, 0, timeout, beside);
  }
  return g->members;
}
