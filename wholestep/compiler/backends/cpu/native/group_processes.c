/* Ranks that are processes.  Ranks of one machine read each other's memory through shared windows.  Others send messages,
   by three functions that come as pointers: those of group_sockets.c, or of the MPI library that Python has loaded, so that
   nothing here needs MPI to be compiled.

   Every collective is made of one thing, an exchange: each rank has a piece for each other one.  A sum of all ranks is two
   of them, pieces of what is summed and pieces of the sum, so that each rank sends 2 (n - 1) / n of the data. */
#define _GNU_SOURCE
#include "group_rows.h"
#include "group_waiting.h"
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { SMALL = 4096 };                                /* bytes that every rank adds by itself: one exchange, not two */

/* ---- exchanges ---- */

/* Pieces of one exchange, by rank.  `out` of a rank are bytes for it; where `same`, all are given those of the own rank.
   `in` may say where to put what comes; afterwards it is where that is. */
typedef struct {
  const char **out;
  const char **in;
  long *out_bytes, *in_bytes;
  int same;
} pieces;

static char *slot_of(const engine *e, int owner, int reader) {
  return e->windows[owner] + ALONE + ((long)(e->turns % 2) * e->group.size + reader) * e->slot;
}

static int exchange_memory(engine *e, pieces *p) {
  const int rank = e->group.rank, size = e->group.size;
  e->turns++;
  for (int other = 0; other < size; other++) {
    if (p->same ? other != rank : other == rank) continue;
    char *slot = slot_of(e, rank, p->same ? 0 : other);
    if (p->out[other] != slot) memcpy(slot, p->out[other], (size_t)p->out_bytes[other]);
  }
  show(&((sign *)e->windows[rank])->what[e->turns % 2], e->what);
  show(&((sign *)e->windows[rank])->published, ++e->published);
  patience wait = {0};
  for (int other = 0; other < size; other++) {
    const sign *theirs = (const sign *)e->windows[other];
    while (seen(&theirs->published) < e->published) {
      const int error = seen(&theirs->left) ? EPIPE : wait_on(e, &wait, other);
      if (error && seen(&theirs->published) < e->published) return fail(e, error, other);  /* it may have come, then left */
    }
    if (seen(&theirs->what[e->turns % 2]) != e->what) return fail(e, EPROTO, other);
    p->in[other] = slot_of(e, other, p->same ? 0 : rank);
  }
  come_through(e, &wait);
  return 0;
}

/* A message to or from a rank failed: it is to blame, or whom it has named before it left. */
static int fail_message(engine *e, int code, int rank) {
  if (code > 0) return fail(e, EPIPE, rank);
  fail(e, -code & 255, rank);
  if (-code >> 8) e->missing = (-code >> 8) - 1;
  return e->group.failed;
}

/* Requests of rank q are at q and size + q; the own ones are none. */
static int finish(engine *e) {
  const int size = e->group.size;
  _Alignas(16) char status[256];
  patience wait = {0};
  for (int i = 0; i < 2 * size; i++) {
    for (int done = i % size == e->group.rank; !done;) {
      const int broken = e->carrier.test(&e->requests[i], &done, status);
      if (broken) return fail_message(e, broken, i % size);
      const int error = done ? 0 : wait_on(e, &wait, i % size);
      if (error && (e->carrier.test(&e->requests[i], &done, status) || !done)) return fail(e, error, i % size);
    }
  }
  come_through(e, &wait);
  return 0;
}

static int exchange_messages(engine *e, pieces *p) {
  const int rank = e->group.rank, size = e->group.size;
  const messages *m = &e->carrier;
  const int tag = (int)(e->what >> 56);               /* what others exchange instead is not for us */
  for (int q = 0; q < size; q++) {
    char *to = p->in[q] ? (char *)p->in[q] : e->received + q * e->slot;
    p->in[q] = to;
    if (q == rank) continue;
    const int broken = m->irecv(to, (int)p->in_bytes[q], m->byte, q, tag, m->comm, &e->requests[q]);
    if (broken) return fail_message(e, broken, q);
  }
  for (int q = 0; q < size; q++) {
    const int from = p->same ? rank : q;
    if (q == rank) continue;
    const int broken = m->isend(p->out[from], (int)p->out_bytes[from], m->byte, q, tag, m->comm, &e->requests[size + q]);
    if (broken) return fail_message(e, broken, q);
  }
  return finish(e);
}

static int exchange(engine *e, pieces *p) {
  if (e->group.failed) return e->group.failed;
  for (int other = 0; other < e->group.size; other++)
    if (other != e->group.rank) e->sent += (uint64_t)p->out_bytes[p->same ? e->group.rank : other];
  return e->windows ? exchange_memory(e, p) : exchange_messages(e, p);
}

/* to = the sum of all ranks' `in`; the own rank's are read where they are. */
static void add(engine *e, const row *r, long first, long count, long own_block, long to_block, const char **in, int dtype) {
  const void *from[e->group.size];
  if (count == 0) return;
  long done = 0;
  for (place at = find(r, first); done < count;) {
    const long here = together(r, at, count - done);
    for (int other = 0; other < e->group.size; other++) from[other] = in[other] + done * r->bytes;
    from[e->group.rank] = source(r, at, own_block);
    ws_tree_sum(target(r, at, to_block), from, here, e->group.size, dtype);
    done += here;
    if (done < count) at = next(r, at, here);
  }
}

/* Room for pieces that are not in one: the own slots of a window, where they are to be anyway, or memory of our own. */
static char *room_of(engine *e, int reader) {
  if (!e->windows) return e->packed + reader * e->slot;
  e->turns++;                                         /* of the exchange that follows */
  char *slot = slot_of(e, e->group.rank, reader);
  e->turns--;
  return slot;
}

/* The part of rank `part` in `count` elements, cut into steps of `length`: the elements of step `step`. */
static long part_of(long count, int part, int size, long step, long length, long *first) {
  const long begin = (long)((__int128)count * part / size), end = (long)((__int128)count * (part + 1) / size);
  *first = begin + step * length < end ? begin + step * length : end;
  return end - *first < length ? end - *first : length;
}

#define PIECES(e)                                                                                                        \
  const int size = (e)->group.size, rank = (e)->group.rank;                                                              \
  const char *out[size], *in[size];                                                                                      \
  long out_bytes[size], in_bytes[size], firsts[size], counts[size];                                                      \
  pieces p = {out, in, out_bytes, in_bytes, 0}

/* ---- collectives ---- */

enum { ALL_REDUCE = 1, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

static void begin(engine *e, int kind, int dtype, const row *r) {
  e->what = (uint64_t)kind << 60 | (uint64_t)dtype << 56 | (uint64_t)r->count;
}

/* Give `count` elements of the own row to all and take theirs, into block q of `to`, or into the own place of each. */
static int share_all(engine *e, const row *r, const long *own_first, const long *own_count, int blocks, const char *mine) {
  PIECES(e);
  (void)firsts, (void)counts;
  p.same = 1;
  for (int q = 0; q < size; q++) {
    out[q] = NULL, out_bytes[q] = 0, in_bytes[q] = own_count[q] * r->bytes;
    in[q] = q == rank ? NULL : whole_target(r, own_first[q], own_count[q], blocks ? q : 0);
  }
  out[rank] = mine, out_bytes[rank] = own_count[rank] * r->bytes;
  const int error = exchange(e, &p);
  if (error) return error;
  for (int q = 0; q < size; q++)
    if (q != rank) scatter(r, own_first[q], own_count[q], blocks ? q : 0, in[q]);
  return 0;
}

static int all_reduce_small(engine *e, const row *r, int dtype) {
  PIECES(e);
  (void)firsts, (void)counts;
  p.same = 1;
  for (int q = 0; q < size; q++) out[q] = in[q] = NULL, out_bytes[q] = 0, in_bytes[q] = r->count * r->bytes;
  out[rank] = gather(r, 0, r->count, 0, room_of(e, 0)), out_bytes[rank] = r->count * r->bytes;
  const int error = exchange(e, &p);
  if (!error) add(e, r, 0, r->count, 0, 0, in, dtype);
  return error;
}

static int all_reduce(ws_group *g, const ws_share *shares, int number, int dtype) {
  engine *e = (engine *)g;
  const row r = row_of(shares, number, dtype);
  if (g->failed || r.count == 0) return g->failed;
  begin(e, ALL_REDUCE, dtype, &r);
  if (r.count * r.bytes <= SMALL) return all_reduce_small(e, &r, dtype);
  PIECES(e);
  const long length = e->slot / r.bytes, longest = (r.count + size - 1) / size;
  ws_share written[number];
  for (int s = 0; s < number; s++) written[s] = (ws_share){shares[s].to, shares[s].to, shares[s].count};
  const row sums = row_of(written, number, dtype);
  for (long step = 0; step * length < longest; step++) {
    for (int q = 0; q < size; q++) counts[q] = part_of(r.count, q, size, step, length, &firsts[q]);
    for (int q = 0; q < size; q++) {
      in[q] = NULL, in_bytes[q] = counts[rank] * r.bytes;
      out_bytes[q] = counts[q] * r.bytes;
      out[q] = q == rank ? NULL : gather(&r, firsts[q], counts[q], 0, room_of(e, q));
    }
    int error = exchange(e, &p);
    if (error) return error;
    add(e, &r, firsts[rank], counts[rank], 0, 0, in, dtype);
    error = share_all(e, &sums, firsts, counts, 0, gather(&sums, firsts[rank], counts[rank], 0, room_of(e, 0)));
    if (error) return error;
  }
  return 0;
}

static int reduce_scatter(ws_group *g, const ws_share *shares, int number, int dtype) {
  engine *e = (engine *)g;
  const row r = row_of(shares, number, dtype);
  PIECES(e);
  (void)firsts, (void)counts;
  begin(e, REDUCE_SCATTER, dtype, &r);
  const long length = e->slot / r.bytes;
  for (long first = 0; first < r.count; first += length) {
    const long count = r.count - first < length ? r.count - first : length;
    for (int q = 0; q < size; q++) {
      in[q] = NULL, in_bytes[q] = out_bytes[q] = count * r.bytes;
      out[q] = q == rank ? NULL : gather(&r, first, count, q, room_of(e, q));
    }
    const int error = exchange(e, &p);
    if (error) return error;
    add(e, &r, first, count, rank, 0, in, dtype);
  }
  return g->failed;
}

/* Everyone's pieces to everyone, or rank 0's alone: block `q` of the targets is rank q's, or there is one block. */
static int spread(ws_group *g, const ws_share *shares, int number, int dtype, int from_all) {
  engine *e = (engine *)g;
  const row r = row_of(shares, number, dtype);
  const long length = e->slot / r.bytes;
  long firsts[g->size], counts[g->size];
  begin(e, from_all ? ALL_GATHER : BROADCAST, dtype, &r);
  for (long first = 0; first < r.count; first += length) {
    const long count = r.count - first < length ? r.count - first : length;
    for (int q = 0; q < g->size; q++) firsts[q] = first, counts[q] = from_all || q == 0 ? count : 0;
    const char *mine = gather(&r, first, counts[g->rank], 0, room_of(e, 0));
    const int error = share_all(e, &r, firsts, counts, from_all, mine);
    if (error) return error;
    scatter(&r, first, counts[g->rank], from_all ? g->rank : 0, mine);
  }
  return g->failed;
}

static int all_gather(ws_group *g, const ws_share *shares, int number, int dtype) {
  return spread(g, shares, number, dtype, 1);
}

static int broadcast(ws_group *g, const ws_share *shares, int number, int dtype) {
  return spread(g, shares, number, dtype, 0);
}

/* ---- what Python calls ---- */

/* Bytes of a rank's window for slots of `slot` bytes. */
EXPORT long ws_processes_window(int size, long slot) { return ALONE + 2L * size * slot; }

/* A copy of `count` things of `bytes` each; of nothing, none. */
static void *copied(const void *from, int count, size_t bytes) {
  void *made = from ? malloc((size_t)count * bytes) : NULL;
  return made ? memcpy(made, from, (size_t)count * bytes) : NULL;
}

/* A rank's group; NULL where there is no memory.  `windows`, `pids` and `numbers` are one of each rank and are copied;
   `crowded` says that ranks share cores. */
EXPORT ws_group *ws_processes_open(int rank, int size, double timeout, long slot, char *const *windows, const int *pids,
                             const messages *carrier, int crowded, const int *numbers) {
  engine *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->group = (ws_group){.rank = rank, .size = size, .timeout = timeout, .all_reduce = all_reduce,
                        .reduce_scatter = reduce_scatter, .all_gather = all_gather, .broadcast = broadcast, .engine = e};
  e->carrier = *carrier, e->slot = slot, e->missing = -1, e->spins = crowded ? 0 : windows ? SPINS : CALLS;
  e->windows = copied(windows, size, sizeof *windows);
  e->pids = copied(pids, size, sizeof *pids), e->numbers = copied(numbers, size, sizeof *numbers);
  e->requests = calloc((size_t)(2 * size), sizeof *e->requests);
  if (!windows) e->received = malloc((size_t)(size * slot)), e->packed = malloc((size_t)(size * slot));
  if (!e->pids || !e->numbers || !e->requests || (windows ? !e->windows : !e->received || !e->packed)) return NULL;
  return &e->group;
}

/* Let a rank show on the windows of all ranks of a grid whom it waits for; `whole` is their group. */
EXPORT void ws_processes_watch(ws_group *g, const ws_group *whole) {
  engine *e = (engine *)g;
  e->board = ((const engine *)whole)->windows, e->all = whole->size;
}

EXPORT int ws_processes_missing(const ws_group *g) { return ((const engine *)g)->missing; }
EXPORT uint64_t ws_processes_sent(const ws_group *g) { return ((const engine *)g)->sent; }

/* The others need not wait for this rank any longer. */
EXPORT void ws_processes_leave(ws_group *g) {
  engine *e = (engine *)g;
  if (e->windows) show(&((sign *)e->windows[g->rank])->left, 1);
  if (!g->failed) g->failed = EPIPE, e->missing = e->numbers[g->rank];
}

/* Memory of the engine; the windows are the caller's. */
EXPORT void ws_processes_close(ws_group *g) {
  engine *e = (engine *)g;
  free(e->windows), free((void *)e->pids), free((void *)e->numbers);
  free(e->requests), free(e->received), free(e->packed), free(e);
}
