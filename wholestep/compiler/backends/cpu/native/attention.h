/* Attention and its gradients, for one head of keys and values and the group of query heads that share it.

   Queries are processed in blocks, whose scores against all keys stay in the thread's workspace: no queries x keys
   array is ever in memory.  A causal block of 16 queries is multiplied only with the keys up to its last query.  The
   backward pass recomputes the probabilities from the log-sum-exp of each row.
   Bits: every element of a product is one chain over the summed axis, and a sum along a row has 16 lanes, so neither
   the block size nor the vector width changes a bit. */
#ifndef WS_ATTENTION_H
#define WS_ATTENTION_H
#include "ws.h"
#include "reduce.h"
#include "turn.h"
#include "view.h"

#define WS_CAUSAL_ROWS 16                             /* queries of a causal block */
#define WS_MOST_QUERIES 64                            /* queries of any block */
#define WS_LEAST(a, b) ((a) < (b) ? (a) : (b))

/* The part of the next call's operands that one block of queries prefetches: its share of all queries. */
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
