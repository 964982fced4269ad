/* Attention and its gradients, for one head of keys and values and the heads of queries that look at it.

   Queries are taken in blocks, whose scores against all keys stay in the thread's workspace: no array of queries x keys
   exists.  A causal block of 16 queries is multiplied with the keys up to its last query only.  Every element of a
   product is one chain over the summed axis, and a sum along a row has 16 lanes: neither the size of the blocks nor the
   vectors change a bit. */
#ifndef WS_ATTENTION_H
#define WS_ATTENTION_H
#include "ws.h"
#include "reduce.h"
#include "turn.h"
#include "view.h"

#define WS_CAUSAL_ROWS 16
#define WS_MOST_QUERIES 64                            /* in a block */
#define WS_LEAST(a, b) ((a) < (b) ? (a) : (b))

/* What one product of a call fetches ahead: the queries' share of all that the next call needs. */
typedef struct { const ws_ahead *from; long count; } ws_ahead_share;
#define WS_NOTHING ((ws_ahead_share){0, 0})
#define WS_SHARE(a, first, rows) ws_share_of((a)->ahead, (a)->aheads, first, rows, (a)->group * (a)->queries)
WS_INLINE ws_ahead_share ws_share_of(const ws_ahead *ahead, long aheads, long first, long rows, long all) {
  const long from = aheads * first / all;
  return (ws_ahead_share){ahead + from, aheads * (first + rows) / all - from};
}

WS_INLINE long ws_lanes(long n) { return (n + 15) / 16 * 16; }

#define REAL float
#define NAME(x) x##_f32
#include "attention_rows.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) x##_f64
#include "attention_rows.h"
#undef REAL
#undef NAME
#endif
