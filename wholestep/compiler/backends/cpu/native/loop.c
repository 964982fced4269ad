/* The training loop: many steps inside one run of the pool, with batches gathered by the threads themselves.

   Thread 0 prepares a step (sizes, scalars, addresses) while all threads gather its rows; between two barriers all run the
   plan; thread 0 then records the loss and decides whether the loop continues.
   Invariant: `stop` is written between the end of one step and the next barrier only, so all threads leave together. */
#include "loop.h"

static void step_body(void *step, int id, int threads) {
  const ws_step_call *s = step;
  s->entry(s->call, id, threads);
}

int ws_step(const ws_step_call *s) {
  if (!ws_in_bounds(s->bounds, s->bound_count)) return EDOM;
  ws_fp_mode mode = ws_flush_denormals();
  if (s->prologue) s->prologue(s->call);
  ws_tell_step(s->call, s->call->step);
  ws_restore_denormals(mode);
  const int error = ws_pool_run(step_body, (void *)s, s->threads);
  return error ? error : ws_failure(s->call);
}

typedef struct {
  ws_loop *loop;
  ws_row_order order;
  double deadline;
  long done;
  int stop;                                           /* written by thread 0 before the barrier, read by all after it */
} loop_job;

static long batch_at(const ws_loop *l, long position) {
  long left = l->rows - position;
  return left < l->capacity ? left : l->capacity;
}

static void prepare_step(ws_loop *l, long position, long first, long batch, long rows) {
  if (l->batch_dim) *l->batch_dim = batch;
  if (l->own_dim) *l->own_dim = first;
  if (l->rows_dim) *l->rows_dim = rows;
  ws_place_inputs(l->inputs, l->input_count, l->order_kind, position);
  if (l->step_scalar) *l->step_scalar = (double)l->call->step;
  if (l->prologue) l->prologue(l->call);
  ws_tell_step(l->call, l->call->step);
}

static void finish_step(loop_job *j) {
  ws_loop *l = j->loop;
  const int refused = l->refused && ws_number(l->refused, l->loss_is_double) != 0;
  l->losses[j->done] = ws_number(l->loss, l->loss_is_double);
  if (!refused) l->call->step++;
  j->done++;
  j->stop = ws_seconds() >= j->deadline || (refused && l->stop_on_refusal) || ws_failure(l->call);
}

static void loop_body(void *job, int id, int threads) {
  loop_job *j = job;
  ws_loop *l = j->loop;
  long position = l->position;
  for (long step = 0; step < l->steps && position < l->rows; step++) {
    const long rows = batch_at(l, position);
    long first;
    const long batch = ws_share_of(l->call, rows, &first);
    if (id == 0 && !j->stop) prepare_step(l, position + first, first, batch, rows);
    ws_gather(l->inputs, l->input_count, &j->order, position + first, batch, id, threads);
    ws_barrier();
    if (j->stop) break;
    l->entry(l->call, id, threads);
    ws_barrier();
    if (id == 0) finish_step(j);
    position += rows;
  }
}

long ws_run_loop(ws_loop *l) {
  if (l->rows < 0 || l->position < 0 || l->capacity < 1) return -EINVAL;
  if (!l->batch_dim && l->rows % l->capacity != 0) return -EINVAL;
  loop_job job = {.loop = l, .deadline = ws_seconds() + l->seconds};
  job.order = ws_row_order_of(l->order_kind, l->order, l->order_seed, l->order_epoch, l->rows);
  int error = ws_pool_run(loop_body, &job, l->threads);
  if (error || ws_failure(l->call)) return error ? -error : -ws_failure(l->call);
  for (long step = 0; step < job.done; step++) l->position += batch_at(l, l->position);
  return job.done;
}

uint64_t ws_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i) {
  ws_permutation permutation = ws_permutation_of(seed, epoch, n);
  return ws_permute(&permutation, i);
}
