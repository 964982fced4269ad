/* What the loops over batches (loop.c) and over micro-batches (micro_batches.c) share: the clock, bounds checks of indices,
   a rank's share of a batch, and gathering rows in the order of an epoch.

   The threads of the pool gather the rows of a batch themselves, each its own range, and prefetch the next rows.
   Invariant: no plan runs with an index outside its bound: `ws_in_bounds` is evaluated before. */
#ifndef WS_LOOP_H
#define WS_LOOP_H
#include "group.h"
#include "order.h"
#include "runtime.h"
#include "platform.h"

static inline double ws_seconds(void) { return 1e-9 * (double)ws_now_ns(); }

static inline double ws_number(const void *at, int is_double) {
  return is_double ? *(const double *)at : (double)*(const float *)at;
}

#define WS_BELOW(type)                                                                                             \
  static inline int ws_below_##type(const type *index, long count, uint64_t limit) {                              \
    int bad = 0;                                                                                                  \
    for (long i = 0; i < count; i++) bad |= index[i] >= limit;                                                    \
    return !bad;                                                                                                  \
  }
WS_BELOW(uint8_t)
WS_BELOW(uint32_t)
WS_BELOW(uint64_t)

static inline int ws_in_bounds(const ws_bound *bounds, int count) {
  for (int i = 0; i < count; i++) {
    const ws_bound *b = &bounds[i];
    if (b->bytes == 1 && !ws_below_uint8_t(*b->slot, b->count, b->limit)) return 0;
    if (b->bytes == 4 && !ws_below_uint32_t(*b->slot, b->count, b->limit)) return 0;
    if (b->bytes == 8 && !ws_below_uint64_t(*b->slot, b->count, b->limit)) return 0;
  }
  return 1;
}

/* The rows of a batch that belong to this rank: their number and the first one, as in runtime/process_group.py. */
static inline long ws_share_of(const ws_call *call, long rows, long *first) {
  const long rank = call->group ? call->group->rank : 0, size = call->group ? call->group->size : 1;
  *first = rows * rank / size;
  return rows * (rank + 1) / size - *first;
}

/* Record the number of the running step, which error messages contain. */
static inline void ws_tell_step(const ws_call *call, uint64_t step) {
  if (call->group) call->group->step = step;
}

/* The errno with which the process group failed, or 0. */
static inline int ws_failure(const ws_call *call) { return call->group ? call->group->failed : 0; }

/* The order of an epoch: maps a position to a row. */
typedef struct {
  int kind;                                           /* WS_SEQUENTIAL, WS_SHUFFLED or WS_EXPLICIT */
  const int64_t *rows;
  ws_permutation permutation;
} ws_row_order;

static inline ws_row_order ws_row_order_of(int kind, const int64_t *rows, uint64_t seed, uint64_t epoch, long count) {
  ws_row_order order = {.kind = kind, .rows = rows};
  if (kind == WS_SHUFFLED) order.permutation = ws_permutation_of(seed, epoch, (uint64_t)count);
  return order;
}

static inline long ws_row_at(const ws_row_order *order, long position) {
  if (order->kind == WS_EXPLICIT) return (long)order->rows[position];
  return (long)ws_permute(&order->permutation, (uint64_t)position);
}

/* Point the plan to its batch: in place, or in the staging memory that `ws_gather` fills. */
static inline void ws_place_inputs(const ws_input *inputs, int count, int kind, long position) {
  for (int i = 0; i < count; i++) {
    const ws_input *in = &inputs[i];
    *in->slot = kind == WS_SEQUENTIAL ? in->source + position * in->row_bytes : in->staging;
  }
}

/* Rows of a shuffled epoch are scattered in memory: each is prefetched two rows before it is copied, into the
   second-level cache (into the first it gains nothing).  In longer rows the hardware prefetcher detects the stream. */
enum { WS_ROWS_AHEAD = 2, WS_LONGEST_ROW_AHEAD = 16384, WS_LINE = 64 };

static inline void ws_fetch_row(const ws_input *in, long row) {
  if (in->row_bytes > WS_LONGEST_ROW_AHEAD) return;
  const char *at = in->source + row * in->row_bytes;
  for (long b = 0; b < in->row_bytes; b += WS_LINE) __builtin_prefetch(at + b, 0, 2);
}

static inline void ws_gather(const ws_input *inputs, int count, const ws_row_order *order, long position, long batch,
                             int id, int threads) {
  long lo, hi, rows[WS_ROWS_AHEAD + 1] = {0};
  if (order->kind == WS_SEQUENTIAL) return;
  ws_own(batch, 1, id, threads, &lo, &hi);
  for (long i = lo - WS_ROWS_AHEAD; i < hi; i++) {
    for (int a = 0; a < WS_ROWS_AHEAD; a++) rows[a] = rows[a + 1];
    if (i + WS_ROWS_AHEAD < hi) {
      rows[WS_ROWS_AHEAD] = ws_row_at(order, position + i + WS_ROWS_AHEAD);
      for (int k = 0; k < count; k++) ws_fetch_row(&inputs[k], rows[WS_ROWS_AHEAD]);
    }
    for (int k = 0; k < count && i >= lo; k++) {
      const ws_input *in = &inputs[k];
      memcpy(in->staging + i * in->row_bytes, in->source + rows[0] * in->row_bytes, (size_t)in->row_bytes);
    }
  }
}
#endif
