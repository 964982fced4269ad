/* The thread pool, one per process, and its barrier.  A waiting thread spins for a while, then sleeps:
   waiting.h says why, and for how long.  Thread 0 is the caller; workers stay alive between runs. */
#include "runtime.h"
#include "waiting.h"

/* The job of one worker, in one cache line, which moves between the cores once per run. */
typedef struct {
  _Alignas(64) counter start;                         /* one per worker, so that idle workers stay asleep */
  ws_body body;
  void *argument;
  int threads;
  int core;                                           /* core on which the thread last ran */
} order;

enum {
  TURN_NS = 5000,                                     /* time of spinning between two reads of the clock */
  IDLE_NS = 40000,                                    /* how long a worker spins between runs before it sleeps */
  WORK_NS = 1000000,                                  /* how long it spins within a run: waking costs more than most waits */
  SHORT_NS = 100000                                   /* how long it spins within a run on a busy machine */
};

static struct {
  ws_mutex callers;                                   /* locked during a run: one run at a time */
  int workers;                                        /* workers started so far */
  int cores;
  int spins;                                          /* number of pauses that take about TURN_NS */
  order orders[WS_MAX_THREADS];
  _Alignas(64) counter done;
  _Alignas(64) counter phase;                         /* barrier: `phase` and `arrived` share a cache line on purpose */
  int arrived;
  _Alignas(64) int threads;                           /* threads of the current run; all cores cache this line */
  int spins_now;                                      /* spins in this run; 0 if there are more threads than cores */
} pool = {.callers = WS_MUTEX};

static WS_THREAD_LOCAL int inside_run;
static WS_THREAD_LOCAL int apart;                            /* this thread runs a body alone, outside of the pool */
static WS_THREAD_LOCAL int own_id;

static int team(void) { return __atomic_load_n(&pool.threads, __ATOMIC_RELAXED); }

static int note_core(void) {
  int core = ws_core(), *noted = &pool.orders[own_id].core;
  if (__atomic_load_n(noted, __ATOMIC_RELAXED) != core) __atomic_store_n(noted, core, __ATOMIC_RELAXED);
  return core;
}

/* A busy system may have put two of our threads on one core; there, spinning keeps the other from running (43 us per
   run instead of 0.4). */
static int core_is_shared(void) {
  int core = note_core(), threads = team();
  for (int id = 0; id < threads; id++)
    if (id != own_id && core >= 0 && __atomic_load_n(&pool.orders[id].core, __ATOMIC_RELAXED) == core) return 1;
  return 0;
}

static int spins_now(void) { return __atomic_load_n(&pool.spins_now, __ATOMIC_RELAXED); }

static int spin_while(counter *c, int old, int spins) {
  for (; spins > 0 && load(c) == old; spins--) ws_pause();
  return load(c) == old;
}

/* How long to stay awake, in ns.  Threads that share a core yield to each other; next to other processes they sleep. */
static long patience(long limit, int spins, int64_t now) {
  if (!is_busy(now)) return limit;
  return !spins ? 0 : limit < SHORT_NS ? limit : SHORT_NS;
}

static int watch_while(counter *c, int old, int spins, long limit) {
  const int64_t begin = ws_now_ns();
  for (int64_t now = begin; now - begin < patience(limit, spins, now);) {
    if (!spins) ws_yield();
    const int waits = spin_while(c, old, spins);
    now = end_turn(now);
    if (!waits) return 0;
  }
  return 1;
}

static void wait_while(counter *c, int old, long limit) {
  int spins = spins_now();
  if (!spin_while(c, old, spins / 4)) return;
  if (core_is_shared()) spins = 0;
  if (!spin_while(c, old, spins) || !watch_while(c, old, spins, limit)) return;
  while (load(c) == old) sleep_while(c, old, -1);
  note_core();
}

WS_THREAD(work, number) {
  int id = (int)(intptr_t)number;
  order *mine = &pool.orders[id];
  ws_flush_denormals();
  inside_run = 1;
  own_id = id;
  for (int seen = 0;; seen++) {
    wait_while(&mine->start, seen, IDLE_NS);
    note_core();
    mine->body(mine->argument, id, mine->threads);
    advance(&pool.done);
  }
  WS_THREAD_END;
}

/* A pause takes 10 to 150 cycles, depending on the processor: measure it, the best of three because of interrupts. */
static int spins_in(long ns) {
  int64_t best = 1000000000;
  for (int attempt = 0; attempt < 3; attempt++) {
    const int64_t begin = ws_now_ns();
    for (int i = 0; i < 200; i++) ws_pause(), (void)load(&pool.done);
    const int64_t took = ws_now_ns() - begin;
    if (took < best) best = took;
  }
  return (int)(200 * ns / (best > 0 ? best : 1)) + 1;
}

static void before_fork(void) { ws_lock(&pool.callers); }
static void after_fork_in_parent(void) { ws_unlock(&pool.callers); }
static void after_fork_in_child(void) {               /* only the forking thread survives: no workers, no waiters */
  pool.callers = (ws_mutex)WS_MUTEX;
  pool.workers = 0;
  for (int i = 0; i < WS_MAX_THREADS; i++) pool.orders[i].start = (counter){0};
  pool.done = pool.phase = (counter){0};
  pool.arrived = 0;
}

WS_AT_LOAD static void prepare_for_forks(void) {
  ws_at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static int start_workers(int wanted) {
  int error = 0;
  while (pool.workers < wanted && !error) {
    ws_thread thread;
    error = ws_start_thread(&thread, work, (void *)(intptr_t)(pool.workers + 1));
    if (!error) ws_detach_thread(thread), pool.workers++;
  }
  return error;
}

static void set_team(int threads) {
  if (team() == threads) return;
  __atomic_store_n(&pool.threads, threads, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.spins_now, threads <= pool.cores ? pool.spins : 0, __ATOMIC_RELAXED);
}

static void run_locked(ws_body body, void *argument, int threads) {
  set_team(threads);
  __atomic_store_n(&pool.done.value, 0, __ATOMIC_RELAXED);
  for (int id = 1; id < threads; id++) {
    order *theirs = &pool.orders[id];
    theirs->body = body, theirs->argument = argument, theirs->threads = threads;
    advance(&theirs->start);
  }
  ws_fp_mode mode = ws_flush_denormals();
  inside_run = 1;
  note_core();
  body(argument, 0, threads);
  inside_run = 0;
  ws_restore_denormals(mode);
  for (int done; (done = load(&pool.done)) < threads - 1;) wait_while(&pool.done, done, WORK_NS);
}

static int run_apart(ws_body body, void *argument) {
  ws_fp_mode mode = ws_flush_denormals();
  inside_run = apart = 1;
  body(argument, 0, 1);
  inside_run = apart = 0;
  ws_restore_denormals(mode);
  return 0;
}

int ws_pool_run(ws_body body, void *argument, int threads) {
  if (threads != WS_BESIDE && (threads < 1 || threads > WS_MAX_THREADS)) return EINVAL;
  if (inside_run) return EDEADLK;
  if (threads == WS_BESIDE) return run_apart(body, argument);
  ws_lock(&pool.callers);
  if (!pool.cores) pool.cores = ws_cores(), pool.spins = spins_in(TURN_NS);
  int error = start_workers(threads - 1);
  if (!error) run_locked(body, argument, threads);
  ws_unlock(&pool.callers);
  return error;
}

void ws_barrier(void) {
  int threads = team();
  if (threads == 1 || apart) return;
  int phase = load(&pool.phase);
  if (__atomic_add_fetch(&pool.arrived, 1, __ATOMIC_ACQ_REL) == threads) {
    __atomic_store_n(&pool.arrived, 0, __ATOMIC_RELAXED);
    advance(&pool.phase);
  } else {
    wait_while(&pool.phase, phase, WORK_NS);
  }
}

ws_api ws_api_table = {.gemm_f32 = ws_gemm_f32, .barrier = ws_barrier};
