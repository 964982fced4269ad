/* An exported step: places programs in the caller's block, and runs them over bound rows on the caller's thread.

   The block begins with a `head`; the arguments of programs, states, workspaces and staged rows follow at the offsets of
   tables.h.  Loops and orders are the same as in loop.c and micro_batches.c, so results have the same bits as in
   Python. */
#include "step.h"
#include "loop.h"
#include "tables.h"

typedef struct {
  uint64_t step, epoch, version;                      /* `version` changes whenever a state does */
  uint64_t counts[WS_COUNTS];                         /* update counters of the session and of optimizers */
  uint64_t seen[WS_PROGRAMS];                         /* the version whose copies a program has */
  double scalars[WS_SCALARS + 1];
  double loss;
  const void *inputs[WS_INPUTS + 1];
  long predicted;                                     /* rows of the last ws_predict */
  int refused;
} head;

_Static_assert(sizeof(head) <= WS_HEAD_BYTES, "the head fits");
_Static_assert(sizeof(ws_call) <= WS_CALL_BYTES, "a call fits");

static void *at(const void *block, long offset) { return (char *)(uintptr_t)block + offset; }
static long smaller(long a, long b) { return a < b ? a : b; }

static void no_barrier(void) {}                       /* one thread */
static ws_api api = {.gemm_f32 = ws_gemm_f32, .barrier = no_barrier};

static void place_program(void *block, const ws_program *p) {
  const void **buffers = at(block, p->buffers);
  for (int i = 0; i < p->place_count; i++)
    buffers[i] = p->places[i].from == WS_IN_TABLES ? p->places[i].data : at(block, p->places[i].offset);
  memcpy(at(block, p->sizes), p->dims, (size_t)p->dim_count * sizeof(long));
  *(ws_call *)at(block, p->call) = (ws_call){
      .api = &api, .dims = at(block, p->sizes), .buffers = at(block, p->buffers), .arena = at(block, WS_ARENA),
      .work = at(block, p->work), .work_bytes = WS_WORK_BYTES, .scalars = at(block, p->values),
      .derived = at(block, p->derived), .seed = WS_SEED};
}

long ws_bytes(void) { return WS_BYTES; }

int ws_init(void *block) {
  memset(block, 0, WS_BYTES);
  head *h = block;
  h->version = 1;
  add_products(&api);
  for (int i = 0; i < WS_SCALARS; i++) h->scalars[i] = scalar_defaults[i];
  for (int i = 0; i < ENTRIES; i++)
    for (int k = 0; k < entries[i].program_count; k++) place_program(block, &entries[i].programs[k]);
  return 0;
}

int ws_bind(void *block, int input, const void *array) {
  if (input < 0 || input >= WS_INPUTS) return WS_BAD_NUMBER;
  ((head *)block)->inputs[input] = array;
  return 0;
}

long ws_row_bytes(int input) { return input < 0 || input >= WS_INPUTS ? WS_BAD_NUMBER : inputs[input].row_bytes; }

/* ---- the rows of a call ---- */

#define OUTSIDE(type)                                                                                              \
  static int outside_##type(const type *index, long count, uint64_t below, uint64_t excused) {                     \
    int bad = 0;                                                                                                   \
    for (long i = 0; i < count; i++) bad |= (uint64_t)index[i] >= below && index[i] != (type)excused;              \
    return bad;                                                                                                    \
  }
OUTSIDE(uint8_t)
OUTSIDE(uint32_t)
OUTSIDE(uint64_t)

static int check_input(const head *h, int input, long rows) {
  const ws_input_info *i = &inputs[input];
  const void *array = h->inputs[input];
  if (!array) return WS_NOT_BOUND;
  if (!i->index_bytes) return 0;
  const long count = i->has_rows ? rows * i->elements : i->elements;
  const int bad = i->index_bytes == 1   ? outside_uint8_t(array, count, i->below, i->excused)
                  : i->index_bytes == 4 ? outside_uint32_t(array, count, i->below, i->excused)
                                        : outside_uint64_t(array, count, i->below, i->excused);
  return bad ? WS_BAD_INDEX : 0;
}

/* Are all inputs of an entry point bound, all indices in bounds, and can it process `rows` rows in these batches? */
static int check(const head *h, const ws_entry_point *e, long rows, long batch) {
  if (rows < 1 || batch < 1 || batch > e->batch) return WS_BAD_NUMBER;
  if (e->is_fixed && (batch != e->batch || rows % batch)) return WS_BAD_NUMBER;
  const long last_batch = (rows - 1) % batch + 1, last_part = (last_batch - 1) % e->part + 1;
  if (smaller(last_part, smaller(batch, e->part)) < e->least) return WS_BAD_NUMBER;
  for (int k = 0; k < e->program_count; k++)
    for (int i = 0; i < e->programs[k].place_count; i++) {
      const ws_place *place = &e->programs[k].places[i];
      const int error = place->from == WS_IN_INPUT ? check_input(h, place->input, rows) : 0;
      if (error) return error;
    }
  return 0;
}

static double scalar_value(const head *h, int which) {
  if (which >= 0) return h->scalars[which];
  if (which == WS_SCALAR_STEP) return (double)h->step;
  if (which == WS_SCALAR_EPOCH) return (double)h->epoch;
  return (double)(int64_t)(h->step - h->counts[WS_SCALAR_START - which]);
}

static void place_rows(void *block, const ws_program *p, const ws_row_order *order, long position, long batch) {
  const head *h = block;
  const void **buffers = at(block, p->buffers);
  ws_input rows[WS_INPUTS + 1];
  for (int i = 0; i < p->place_count; i++)
    if (p->places[i].from == WS_IN_INPUT) buffers[i] = h->inputs[p->places[i].input];
  for (int k = 0; k < p->input_count; k++) {
    const ws_input_info *info = &inputs[p->inputs[k]];
    rows[k] = (ws_input){.source = h->inputs[p->inputs[k]], .row_bytes = info->row_bytes,
                         .slot = &buffers[p->slots[k]], .staging = at(block, info->staging)};
  }
  ws_place_inputs(rows, p->input_count, order->kind, position);
  ws_gather(rows, p->input_count, order, position, batch, 0, 1);
}

static void set_size(void *block, const ws_program *p, int dim, long size) {
  if (dim >= 0) ((long *)at(block, p->sizes))[dim] = size;
}

/* Run a program over part of the rows of a step: `batch` of its `rows`, after the first `first` of them. */
static void run_program(void *block, const ws_entry_point *e, const ws_program *p, long first, long batch, long rows) {
  head *h = block;
  ws_call *call = at(block, p->call);
  double *values = at(block, p->values);
  set_size(block, p, p->batch_dim, batch);
  set_size(block, p, p->whole_dim, batch);
  set_size(block, p, p->first_dim, first);
  set_size(block, p, p->own_dim, 0);
  set_size(block, p, p->rows_dim, rows);
  set_size(block, p, p->parts_dim, (rows + e->part - 1) / e->part);
  for (int i = 0; i < p->scalar_count; i++) values[i] = scalar_value(h, p->scalars[i]);
  call->step = h->step;
  if (h->seen[p->number] != h->version) p->refresh(call);
  p->prologue(call);
  p->entry(call, 0, 1);
  h->seen[p->number] = h->version;
}

/* One call of an entry point: its programs over `rows` rows from `position` on. */
static void run_rows(void *block, const ws_entry_point *e, const ws_row_order *order, long position, long rows) {
  head *h = block;
  const unsigned mode = ws_flush_denormals();
  for (int k = 0; k < e->program_count; k++) {
    const ws_program *p = &e->programs[k];
    for (long first = 0; first < (p->once ? 1 : rows); first += e->part) {
      const long batch = smaller(e->part, rows - first);
      place_rows(block, p, order, position + first, batch);
      run_program(block, e, p, first, batch, rows);
    }
  }
  ws_restore_denormals(mode);
  if (e->loss >= 0) h->loss = ws_number(at(block, e->loss), e->loss_is_double);
  h->refused = e->refused >= 0 && ws_number(at(block, e->refused), e->loss_is_double) != 0;
}

static void update(void *block, const ws_row_order *order, long position, long rows) {
  const ws_entry_point *e = &entries[TRAIN];
  head *h = block;
  run_rows(block, e, order, position, rows);
  h->version++;
  if (e->program_count == 1) h->seen[e->programs->number] = h->version; /* its update has rewritten its copies */
  if (h->refused) return;
  h->step++;
  for (int i = 0; i < WS_COUNTS; i++) h->counts[i]++;
}

#include "tensors.h"

/* ---- entry points ---- */

static int is_there(int entry) { return entries[entry].program_count > 0; }

long ws_run(void *block, long rows, long batch, int shuffle, long position, long steps, double *losses) {
  head *h = block;
  const ws_entry_point *e = &entries[TRAIN];
  batch = batch ? batch : e->batch;
  if (!is_there(TRAIN) || position < 0 || position > rows || steps < 0) return WS_BAD_NUMBER;
  const int error = check(h, e, rows, batch);
  if (error) return error;
  if (position % batch) return WS_BAD_NUMBER;
  if (position == 0) fill_states(block, fills_of_training, FILLS_OF_TRAINING);
  const ws_row_order order = ws_row_order_of(shuffle ? WS_SHUFFLED : WS_SEQUENTIAL, 0, WS_SEED, h->epoch, rows);
  long done = 0;
  h->refused = 0;
  while (done < steps && position < rows && !(h->refused && e->stops)) {
    const long now = smaller(batch, rows - position);
    update(block, &order, position, now);
    losses[done++] = h->loss;
    position += now;
    if (position == rows) h->epoch++;
  }
  return done;
}

int ws_update(void *block, long rows) {
  if (!is_there(TRAIN)) return WS_BAD_NUMBER;
  const int error = check(block, &entries[TRAIN], rows, rows);
  const ws_row_order order = {.kind = WS_SEQUENTIAL};
  if (!error) update(block, &order, 0, rows);
  return error;
}

int ws_evaluate(void *block, long rows) {
  head *h = block;
  const ws_entry_point *e = &entries[EVALUATE], *all = &entries[EVALUATE_ALL];
  const ws_row_order order = {.kind = WS_SEQUENTIAL};
  const int refused = h->refused, in_parts = rows > e->batch && is_there(EVALUATE_ALL);
  if (!is_there(EVALUATE)) return WS_BAD_NUMBER;
  if (in_parts) e = all;
  const int error = check(h, e, rows, in_parts ? rows : smaller(rows, e->batch));
  if (error) return error;
  fill_states(block, fills_of_evaluation, FILLS_OF_EVALUATION);
  double sum = 0;
  for (long first = 0; first < rows; first += smaller(e->batch, rows)) {
    const long batch = smaller(e->batch, rows - first);
    run_rows(block, e, &order, first, batch);
    sum += (double)batch * h->loss;
  }
  if (rows > e->batch) h->loss = sum / (double)rows;
  h->refused = refused;
  return 0;
}

int ws_predict(void *block, long rows) {
  head *h = block;
  if (!is_there(PREDICT)) return WS_BAD_NUMBER;
  const int refused = h->refused, error = check(h, &entries[PREDICT], rows, rows);
  const ws_row_order order = {.kind = WS_SEQUENTIAL};
  const double loss = h->loss;
  if (error) return error;
  run_rows(block, &entries[PREDICT], &order, 0, rows);
  h->predicted = rows, h->loss = loss, h->refused = refused;
  return 0;
}

/* ---- numbers ---- */

double ws_loss(const void *block) { return ((const head *)block)->loss; }
int ws_refused(const void *block) { return ((const head *)block)->refused; }

static double state_number(const void *block, int state) {
  const ws_tensor *t = &states[state];
  const void *value = at(block, t->offset);
  if (t->kind == WS_FLOAT) return (double)*(const float *)value;
  if (t->kind == WS_DOUBLE) return *(const double *)value;
  return t->kind == WS_INT32 ? (double)*(const int32_t *)value : (double)*(const int64_t *)value;
}

double ws_metric(const void *block, int entry, int metric) {
  if (entry < WS_TRAINING || entry > WS_EVALUATION || metric < 0 || metric >= WS_METRICS) return __builtin_nan("");
  const ws_ratio *r = &metrics[entry][metric];
  if (r->numerator < 0) return __builtin_nan("");
  const double below = state_number(block, r->denominator), value = state_number(block, r->numerator) / below;
  return below > 0 ? (r->root ? __builtin_sqrt(value) : value) : __builtin_nan("");
}

double ws_get_scalar(const void *block, int scalar) {
  return scalar < 0 || scalar >= WS_SCALARS ? __builtin_nan("") : ((const head *)block)->scalars[scalar];
}

int ws_set_scalar(void *block, int scalar, double value) {
  if (scalar < 0 || scalar >= WS_SCALARS || !(value - value == 0)) return WS_BAD_NUMBER;
  ((head *)block)->scalars[scalar] = value;
  return 0;
}

double ws_counter(const void *block, int counter) {
  const head *h = block;
  return (double)(counter == WS_EPOCHS ? h->epoch : h->step);
}

const char *ws_error(int code) {
  static const char *const texts[] = {
      "no error", "an input is not bound: ws_bind",
      "a number is out of range: rows, the batch, the position, or the number of a tensor",
      "an index of an input, such as a class, is out of bounds: see `below` in manifest.json",
      "this is not a safetensors file, or it is damaged; nothing was read",
      "a tensor of the file has another shape or type than this step; nothing was read",
      "the parameters of the file have had different numbers of updates, which this step cannot continue"};
  return code > 0 || -code >= (int)(sizeof texts / sizeof *texts) ? "an unknown error" : texts[-code];
}

#include "checkpoint.h"
