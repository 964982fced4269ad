/* Gradient accumulation: the loop over steps that process several micro-batches before one update.

   A step runs in phases, each a separate program over the same state: one computes the denominators, one processes the
   micro-batches (parts) and accumulates their gradients, one updates.  All of it is one run of the pool. */
#include "loop.h"
#include "half.h"

typedef struct {
  ws_micro_batch_loop *loop;
  ws_row_order order;
  double deadline;
  long done;
  int stop;                                           /* written by thread 0 before a barrier, read by all after it */
} micro_batch_job;

static long least(long a, long b) { return a < b ? a : b; }

/* Transpose a state in rows or panels into panels of 16 columns; each thread writes its own panels. */
#define TRANSPOSE(type)                                                                                            \
  static void transpose_##type(const ws_copy *c, long lo, long hi) {                                              \
    const type *from = c->state;                                                                                  \
    type *to = c->copy;                                                                                           \
    for (long panel = lo; panel < hi; panel++)                                                                    \
      for (long j = 0; j < c->columns; j++)                                                                       \
        for (long i = 16 * panel; i < least(16 * panel + 16, c->rows); i++) {                                     \
          const long at = c->paneled ? (j / 16) * (c->rows * 16) + i * 16 + j % 16 : i * c->columns + j;          \
          to[panel * (c->columns * 16) + j * 16 + i % 16] = from[at];                                             \
        }                                                                                                         \
  }
TRANSPOSE(float)
TRANSPOSE(double)

/* Convert a float state to its half-precision copy in pairs. */
#define PAIR(name)                                                                                                 \
  static void pair_##name(const ws_copy *c, long lo, long hi) {                                                   \
    const float *from = c->state;                                                                                 \
    uint16_t *to = c->copy;                                                                                       \
    const long rows = c->transposed ? c->columns : c->rows, columns = c->transposed ? c->rows : c->columns;       \
    for (long k = 0; k < rows; k++)                                                                               \
      for (long l = 16 * lo; l < least(16 * hi, columns); l++) {                                                  \
        const long i = c->transposed ? l : k, j = c->transposed ? k : l;                                          \
        const long at = c->paneled ? (j / 16) * (c->rows * 16) + i * 16 + j % 16 : i * c->columns + j;            \
        to[l / 16 * ((rows + 1) / 2 * 32) + k / 2 * 32 + l % 16 * 2 + k % 2] = ws_##name##_f32(from[at]);         \
      }                                                                                                           \
  }
PAIR(bf16)
PAIR(f16)

static void refresh(const ws_phase *phase, int id, int threads) {
  for (int k = 0; k < phase->copy_count; k++) {
    const ws_copy *copy = &phase->copies[k];
    long lo, hi;
    ws_own(((copy->transposed ? copy->rows : copy->columns) + 15) / 16, 1, id, threads, &lo, &hi);
    if (copy->half == WS_BF16) pair_bf16(copy, lo, hi);
    else if (copy->half == WS_F16) pair_f16(copy, lo, hi);
    else if (copy->bytes == 4) transpose_float(copy, lo, hi);
    else transpose_double(copy, lo, hi);
  }
}

static void prepare(const micro_batch_job *j, ws_phase *phase, long position, long first, long own, long rows,
                    long batch) {
  const ws_micro_batch_loop *l = j->loop;
  if (phase->batch_dim) *phase->batch_dim = batch;
  if (phase->first_dim) *phase->first_dim = first;
  if (phase->own_dim) *phase->own_dim = own;
  if (phase->whole_dim) *phase->whole_dim = least(l->part, rows - first);
  if (phase->rows_dim) *phase->rows_dim = rows;
  if (phase->parts_dim) *phase->parts_dim = (rows + l->part - 1) / l->part;
  ws_place_inputs(phase->inputs, phase->input_count, l->order_kind, position + first + own);
  phase->call->step = l->step;
  ws_tell_step(phase->call, l->step);
  if (phase->step_scalar) *phase->step_scalar = (double)l->step;
  if (phase->prologue) phase->prologue(phase->call);
}

static void run_phase(const micro_batch_job *j, ws_phase *phase, long position, long rows, int id, int threads) {
  const ws_micro_batch_loop *l = j->loop;
  const long end = phase->once ? 1 : rows;
  refresh(phase, id, threads);
  for (long first = 0; first < end; first += l->part) {
    long own;
    const long batch = ws_share_of(phase->call, least(l->part, rows - first), &own);
    if (id == 0) prepare(j, phase, position, first, own, rows, batch);
    ws_gather(phase->inputs, phase->input_count, &j->order, position + first + own, batch, id, threads);
    ws_barrier();
    phase->entry(phase->call, id, threads);
    ws_barrier();
  }
}

static void finish_step(micro_batch_job *j) {
  ws_micro_batch_loop *l = j->loop;
  const int refused = l->refused && ws_number(l->refused, l->loss_is_double) != 0;
  l->losses[j->done] = ws_number(l->loss, l->loss_is_double);
  if (!refused) l->step++;
  j->done++;
  j->stop = ws_seconds() >= j->deadline || (refused && l->stop_on_refusal) || ws_failure(l->phases[0].call);
}

static void micro_batch_body(void *job, int id, int threads) {
  micro_batch_job *j = job;
  ws_micro_batch_loop *l = j->loop;
  long position = l->position;
  for (long step = 0; step < l->steps && position < l->rows; step++) {
    const long rows = least(l->batch, l->rows - position);
    for (int k = 0; k < l->phase_count; k++) run_phase(j, &l->phases[k], position, rows, id, threads);
    if (id == 0) finish_step(j);
    ws_barrier();                                     /* after this barrier all threads see `stop` and the new step number */
    if (j->stop) break;
    position += rows;
  }
}

long ws_run_micro_batches(ws_micro_batch_loop *l) {
  if (l->rows < 0 || l->position < 0 || l->part < 1 || l->batch < l->part) return -EINVAL;
  if (!ws_in_bounds(l->bounds, l->bound_count)) return -EDOM;
  micro_batch_job job = {.loop = l, .deadline = ws_seconds() + l->seconds};
  job.order = ws_row_order_of(l->order_kind, l->order, l->order_seed, l->order_epoch, l->rows);
  int error = ws_pool_run(micro_batch_body, &job, l->threads);
  if (!error) error = ws_failure(l->phases[0].call);
  if (error) return -error;
  for (long step = 0; step < job.done; step++) l->position += least(l->batch, l->rows - l->position);
  return job.done;
}
