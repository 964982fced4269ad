/* Collectives between ranks that are processes.  Ranks of one machine read each other's memory through shared windows.
   Ranks of several machines send messages by three functions, passed as pointers: the functions of group_sockets.c, or
   of the MPI library that Python has loaded, so that this file compiles without MPI.

   Every collective consists of exchanges, in which each rank sends one piece to each other rank (all-to-all).  An
   all-reduce is two exchanges, a reduce-scatter and an all-gather, so that each rank sends 2 (n - 1) / n of the data. */
#include "group_rows.h"
#include "group_waiting.h"
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { SMALL = 4096 };                                /* bytes: up to this, every rank adds all data, in one exchange */

/* ---- exchanges ---- */

/* The pieces of one exchange, by rank.  out[q] is sent to rank q; if `same`, every rank is sent the `out` of this rank.
   in[q] may be set to the address at which the piece of rank q is wanted; afterwards it is the address where it is. */
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
      if (error && seen(&theirs->published) < e->published) return fail(e, error, other);  /* it left without publishing */
    }
    if (seen(&theirs->what[e->turns % 2]) != e->what) return fail(e, EPROTO, other);
    p->in[other] = slot_of(e, other, p->same ? 0 : rank);
  }
  come_through(e, &wait);
  return 0;
}

/* A message to or from a rank failed: blame this rank, or the rank that it named before it left. */
static int fail_message(engine *e, int code, int rank) {
  if (code > 0) return fail(e, EPIPE, rank);
  fail(e, -code & 255, rank);
  if (-code >> 8) e->missing = (-code >> 8) - 1;
  return e->group.failed;
}

/* Wait for all requests: the receive from rank q is request q, the send is size + q; this rank itself has none. */
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
  const int tag = (int)(e->what >> 56);               /* messages of another collective do not match */
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

/* to = the sum of `in` over all ranks; this rank's own elements are read in place. */
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

/* Where pieces that are not contiguous are packed: this rank's slot of the window, to which they would be copied anyway,
   or private memory for messages. */
static char *room_of(engine *e, int reader) {
  if (!e->windows) return e->packed + reader * e->slot;
  e->turns++;                                         /* the slots of the next exchange */
  char *slot = slot_of(e, e->group.rank, reader);
  e->turns--;
  return slot;
}

/* The elements of step `step` of a rank's part: `count` elements are divided among the ranks, and each part into steps of
   `length` elements.  Returns their number. */
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

/* Send this rank's elements to all ranks and receive theirs: elements of rank q are stored in block q of `to` if
   `blocks` is nonzero, else at their own positions. */
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

/* An all-gather if `from_all` (block q gets rank q's elements); else a broadcast of the elements of rank 0. */
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

/* ---- functions that Python calls ---- */

/* The size in bytes of a rank's window with slots of `slot` bytes. */
EXPORT long ws_processes_window(int size, long slot) { return ALONE + 2L * size * slot; }

/* A copy of `count` items of `bytes` bytes each; NULL if `from` is NULL. */
static void *copy_of(const void *from, int count, size_t bytes) {
  void *copy = from ? malloc((size_t)count * bytes) : NULL;
  return copy ? memcpy(copy, from, (size_t)count * bytes) : NULL;
}

/* The group of one rank; NULL if memory does not suffice.  `windows`, `pids` and `numbers` have one entry per rank and are
   copied; `crowded`: do several ranks share a core? */
EXPORT ws_group *ws_processes_open(int rank, int size, double timeout, long slot, char *const *windows, const int *pids,
                             const messages *carrier, int crowded, const int *numbers) {
  engine *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->group = (ws_group){.rank = rank, .size = size, .timeout = timeout, .all_reduce = all_reduce,
                        .reduce_scatter = reduce_scatter, .all_gather = all_gather, .broadcast = broadcast, .engine = e};
  e->carrier = *carrier, e->slot = slot, e->missing = -1, e->spins = crowded ? 0 : windows ? SPINS : CALLS;
  e->windows = copy_of(windows, size, sizeof *windows);
  e->pids = copy_of(pids, size, sizeof *pids), e->numbers = copy_of(numbers, size, sizeof *numbers);
  e->requests = calloc((size_t)(2 * size), sizeof *e->requests);
  if (!windows) e->received = malloc((size_t)(size * slot)), e->packed = malloc((size_t)(size * slot));
  if (!e->pids || !e->numbers || !e->requests || (windows ? !e->windows : !e->received || !e->packed)) return NULL;
  return &e->group;
}

/* Use the windows of `whole`, the group of all ranks of the mesh, as the board on which ranks publish for whom they wait. */
EXPORT void ws_processes_watch(ws_group *g, const ws_group *whole) {
  engine *e = (engine *)g;
  e->board = ((const engine *)whole)->windows, e->all = whole->size;
}

EXPORT int ws_processes_missing(const ws_group *g) { return ((const engine *)g)->missing; }
EXPORT uint64_t ws_processes_sent(const ws_group *g) { return ((const engine *)g)->sent; }

/* Leave the group: the other ranks stop waiting for this one. */
EXPORT void ws_processes_leave(ws_group *g) {
  engine *e = (engine *)g;
  if (e->windows) show(&((sign *)e->windows[g->rank])->left, 1);
  if (!g->failed) g->failed = EPIPE, e->missing = e->numbers[g->rank];
}

/* Free the engine's memory; the windows belong to the caller. */
EXPORT void ws_processes_close(ws_group *g) {
  engine *e = (engine *)g;
  free(e->windows), free((void *)e->pids), free((void *)e->numbers);
  free(e->requests), free(e->received), free(e->packed), free(e);
}
