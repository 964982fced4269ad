/* The training loop: many steps inside one run of the pool, batches gathered by the threads themselves. */
#define _GNU_SOURCE
#include "order.h"
#include "runtime.h"
#include <errno.h>
#include <string.h>
#include <time.h>

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
  ws_entry_fn entry;
  const ws_call *call;
} step_job;

static void step_body(void *job, int id, int threads) {
  const step_job *j = job;
  j->entry(j->call, id, threads);
}

#define BELOW(type)                                                                                                \
  static int below_##type(const type *index, long count, uint64_t limit) {                                        \
    int bad = 0;                                                                                                  \
    for (long i = 0; i < count; i++) bad |= index[i] >= limit;                                                    \
    return !bad;                                                                                                  \
  }
BELOW(uint8_t)
BELOW(uint32_t)
BELOW(uint64_t)

static int in_bounds(const ws_bound *b) {
  switch (b->bytes) {
    case 1: return below_uint8_t(*b->slot, b->count, b->limit);
    case 4: return below_uint32_t(*b->slot, b->count, b->limit);
    default: return below_uint64_t(*b->slot, b->count, b->limit);
  }
}

int ws_step(ws_prologue_fn prologue, ws_entry_fn entry, const ws_call *call, int threads, const ws_bound *bounds,
            int bound_count) {
  for (int i = 0; i < bound_count; i++)
    if (!in_bounds(&bounds[i])) return EDOM;
  unsigned mode = ws_flush_denormals();
  if (prologue) prologue(call);
  ws_restore_denormals(mode);
  step_job job = {entry, call};
  return ws_pool_run(step_body, &job, threads);
}

typedef struct {
  ws_loop *loop;
  ws_permutation permutation;
  double deadline;
  long done;
  int stop;                                           /* written by thread 0 before the barrier, read by all after */
} loop_job;

static long batch_at(const ws_loop *l, long position) {
  long left = l->rows - position;
  return left < l->capacity ? left : l->capacity;
}

static long row_at(const loop_job *j, long position) {
  if (j->loop->order_kind == WS_EXPLICIT) return (long)j->loop->order[position];
  return (long)ws_permute(&j->permutation, (uint64_t)position);
}

static void prepare_step(ws_loop *l, long position, long batch) {
  if (l->batch_dim) *l->batch_dim = batch;
  for (int i = 0; i < l->input_count; i++) {
    const ws_input *in = &l->inputs[i];
    *in->slot = l->order_kind == WS_SEQUENTIAL ? in->source + position * in->row_bytes : in->staging;
  }
  if (l->step_scalar) *l->step_scalar = (double)l->call->step;
  if (l->prologue) l->prologue(l->call);
}

static void gather(const loop_job *j, long position, long batch, int id, int threads) {
  const ws_loop *l = j->loop;
  long lo, hi;
  ws_own(batch, 1, id, threads, &lo, &hi);
  for (long i = lo; i < hi; i++) {
    long row = row_at(j, position + i);
    for (int k = 0; k < l->input_count; k++) {
      const ws_input *in = &l->inputs[k];
      memcpy(in->staging + i * in->row_bytes, in->source + row * in->row_bytes, (size_t)in->row_bytes);
    }
  }
}

static double number_at(const ws_loop *l, const void *at) {
  return l->loss_is_double ? *(const double *)at : (double)*(const float *)at;
}

static void finish_step(loop_job *j) {
  ws_loop *l = j->loop;
  const int refused = l->refused && number_at(l, l->refused) != 0;
  l->losses[j->done] = number_at(l, l->loss);
  if (!refused) l->call->step++;
  j->done++;
  j->stop = seconds_now() >= j->deadline || (refused && l->stop_on_refusal);
}

static void loop_body(void *job, int id, int threads) {
  loop_job *j = job;
  ws_loop *l = j->loop;
  long position = l->position;
  for (long step = 0; step < l->steps && position < l->rows; step++) {
    const long batch = batch_at(l, position);
    if (id == 0 && !j->stop) prepare_step(l, position, batch);
    if (l->order_kind != WS_SEQUENTIAL) gather(j, position, batch, id, threads);
    ws_barrier();
    if (j->stop) break;
    l->entry(l->call, id, threads);
    ws_barrier();
    if (id == 0) finish_step(j);
    position += batch;
  }
}

long ws_run_loop(ws_loop *l) {
  if (l->rows < 0 || l->position < 0 || l->capacity < 1) return -EINVAL;
  if (!l->batch_dim && l->rows % l->capacity != 0) return -EINVAL;
  loop_job job = {.loop = l, .deadline = seconds_now() + l->seconds};
  if (l->order_kind == WS_SHUFFLED)
    job.permutation = ws_permutation_of(l->order_seed, l->order_epoch, (uint64_t)l->rows);
  int error = ws_pool_run(loop_body, &job, l->threads);
  if (error) return -error;
  for (long step = 0; step < job.done; step++) l->position += batch_at(l, l->position);
  return job.done;
}

uint64_t ws_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i) {
  ws_permutation permutation = ws_permutation_of(seed, epoch, n);
  return ws_permute(&permutation, i);
}
