/* Exports of the runtime library: the thread pool, the loops over steps, and the products.

   A generated plan calls only the function table of ws.h; Python (cpu/runtime/library.py) and tests call these by name, so
   their structures and signatures are part of the interface with Python. */
#ifndef WS_RUNTIME_H
#define WS_RUNTIME_H
#include "platform.h"
#include "processor.h"
#include "ws.h"

#define WS_EXPORT __attribute__((visibility("default")))
#define WS_MAX_THREADS 64

typedef void (*ws_body)(void *argument, int id, int threads);

/* Run body(argument, id, threads) for id = 0 .. threads-1 and wait for all; the caller is id 0.  Returns 0 or an errno:
   EINVAL (threads outside 1 ..  WS_MAX_THREADS), EDEADLK (called from inside a run), or the reason why a thread could
   not be started.  On an error nothing has run.  With WS_BESIDE as `threads` the caller runs the body alone,
   independently of the pool: ranks that are threads of one process run a step in parallel. */
enum { WS_BESIDE = 1 << 16 };
WS_EXPORT int ws_pool_run(ws_body body, void *argument, int threads);
/* Wait until every thread of the current run has arrived. */
WS_EXPORT void ws_barrier(void);

WS_EXPORT void ws_gemm_f32(const ws_gemm *);
WS_EXPORT void ws_gemm_f64(const ws_gemm *);

/* Index inputs of a step: read as unsigned, each must be below `limit`. */
typedef struct {
  const void *const *slot;                            /* &buffers[i]: where the plan reads their address */
  long count;
  uint64_t limit;
  int bytes;                                          /* bytes per index: 1, 4 or 8 */
} ws_bound;

/* One step: the prologue, then the entry point on every thread.  It does not change call->step. */
typedef struct {
  ws_prologue_fn prologue;
  ws_entry_fn entry;
  const ws_call *call;
  const ws_bound *bounds;
  int bound_count, threads;
} ws_step_call;

/* Returns 0 or an errno: EDOM, with nothing run, if an index is out of bounds; or the error of a process group. */
WS_EXPORT int ws_step(const ws_step_call *);

/* An input whose batches the loop reads from `source`, row by row, in the order of the epoch. */
typedef struct {
  const char *source;
  long row_bytes;
  const void **slot;                                  /* &buffers[i]: where the plan reads the address of the batch */
  char *staging;                                      /* capacity * row_bytes; unused if the order is sequential */
} ws_input;

enum { WS_SEQUENTIAL, WS_SHUFFLED, WS_EXPLICIT };

/* Many steps of one epoch in one call.  If a group of ranks shares each batch, every rank reads its own rows. */
typedef struct {
  ws_prologue_fn prologue;
  ws_entry_fn entry;
  ws_call *call;                                      /* call->step advances with every step */
  long *batch_dim;                                    /* the entry of call->dims that holds the batch size, or NULL */
  ws_input *inputs;
  const int64_t *order;                               /* WS_EXPLICIT: the row at each position of the epoch */
  const void *loss;                                   /* the loss of a step, float or double */
  const void *refused;                                /* output that is nonzero if a step was skipped, or NULL */
  double *losses;                                     /* one per step done here */
  double *step_scalar;                                /* set to call->step before each prologue, or NULL */
  uint64_t order_seed, order_epoch;                   /* WS_SHUFFLED: as ws_order */
  long rows, capacity;                                /* rows of the data set; rows of a batch */
  long position;                                      /* position in the epoch; advances by the rows used */
  long steps;                                         /* most steps to run; the end of the epoch ends the call too */
  double seconds;                                     /* no new step starts after this time */
  int input_count, order_kind, loss_is_double, stop_on_refusal, threads;
  long *own_dim, *rows_dim;                           /* dims: rows of lower ranks in the batch, all rows; or NULL */
} ws_loop;

/* Returns the steps done (at least one unless steps or rows are used up), or a negative errno. */
WS_EXPORT long ws_run_loop(ws_loop *);

/* A copy of a state: its transpose in panels, or its half-precision form in pairs (ws_pairs), perhaps transposed.
   It is rewritten at the start of a phase. */
enum { WS_WHOLE, WS_BF16, WS_F16 };
typedef struct {
  const void *state;
  void *copy;
  long rows, columns;                                 /* of the state */
  int paneled, bytes;                                 /* is the state in panels?  bytes per element: 4 or 8 */
  int half, transposed;                               /* WS_WHOLE, WS_BF16 or WS_F16; is the copy the transpose? */
} ws_copy;

/* One program of a step over micro-batches: it runs for each of them (a part), or once.  Dimensions and scalars that it
   does not have are NULL. */
typedef struct {
  ws_prologue_fn prologue;
  ws_entry_fn entry;
  ws_call *call;
  long *batch_dim, *first_dim, *rows_dim, *parts_dim; /* dims: rows of part, before it, of the step; parts */
  long *own_dim, *whole_dim;                          /* dims: a part's rows on lower ranks, on all ranks */
  double *step_scalar;
  ws_input *inputs;
  const ws_copy *copies;
  int input_count, copy_count, once;
} ws_phase;

/* Many steps over micro-batches of one epoch in one call; fields as in ws_loop. */
typedef struct {
  ws_phase *phases;
  const int64_t *order;
  const void *loss, *refused;
  double *losses;
  const ws_bound *bounds;
  uint64_t order_seed, order_epoch, step;             /* `step` advances with every update */
  long rows, batch, part;                             /* rows of the data set, of a step, of a part */
  long position, steps;
  double seconds;
  int phase_count, bound_count, order_kind, loss_is_double, stop_on_refusal, threads;
} ws_micro_batch_loop;

/* Returns the steps done, or a negative errno; -EDOM, with nothing run, if an index is out of bounds. */
WS_EXPORT long ws_run_micro_batches(ws_micro_batch_loop *);

/* The row at position i of an epoch over n rows: a keyed bijection on [0, n). */
WS_EXPORT uint64_t ws_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

WS_EXPORT extern ws_api ws_api_table;         /* gemm_double.c and gemm_half.c add the remaining entries */
#endif
