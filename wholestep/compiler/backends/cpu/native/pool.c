/* The thread pool, one per process, and its barrier.  A waiting thread spins for a while, then sleeps on a futex:
   waiting.h says why, and for how long.  Thread 0 is the caller; workers stay alive between runs. */
#define _GNU_SOURCE
#include "runtime.h"
#include "waiting.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

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
  pthread_mutex_t callers;                            /* locked during a run: one run at a time */
  int workers;                                        /* workers started so far */
  int cores;
  int spins;                                          /* number of pauses that take about TURN_NS */
  order orders[WS_MAX_THREADS];
  _Alignas(64) counter done;
  _Alignas(64) counter phase;                         /* barrier: `phase` and `arrived` share a cache line on purpose */
  int arrived;
  _Alignas(64) int threads;                           /* threads of the current run; all cores cache this line */
  int spins_now;                                      /* spins in this run; 0 if there are more threads than cores */
} pool = {.callers = PTHREAD_MUTEX_INITIALIZER};

static __thread int inside_run;
static __thread int apart;                            /* this thread runs a body alone, outside of the pool */
static __thread int own_id;

static int team(void) { return __atomic_load_n(&pool.threads, __ATOMIC_RELAXED); }

static int note_core(void) {
#ifdef __linux__
  int core = sched_getcpu(), *noted = &pool.orders[own_id].core;
  if (__atomic_load_n(noted, __ATOMIC_RELAXED) != core) __atomic_store_n(noted, core, __ATOMIC_RELAXED);
  return core;
#else
  return -1;
#endif
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
  for (; spins > 0 && load(c) == old; spins--) PAUSE();
  return load(c) == old;
}

/* How long to stay awake, in ns.  Threads that share a core yield to each other; next to other processes they sleep. */
static long patience(long limit, int spins, long now) {
  if (!is_busy(now)) return limit;
  return !spins ? 0 : limit < SHORT_NS ? limit : SHORT_NS;
}

static int watch_while(counter *c, int old, int spins, long limit) {
  const long begin = now_ns();
  for (long now = begin; now - begin < patience(limit, spins, now);) {
    if (!spins) sched_yield();
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
  while (load(c) == old) sleep_while(c, old, NULL);
  note_core();
}

static void *work(void *number) {
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
  return NULL;
}

/* A pause takes 10 to 150 cycles, depending on the processor: measure it, the best of three because of interrupts. */
static int spins_in(long ns) {
  long best = 1000000000L;
  for (int attempt = 0; attempt < 3; attempt++) {
    long begin = now_ns();
    for (int i = 0; i < 200; i++) PAUSE(), (void)load(&pool.done);
    long took = now_ns() - begin;
    if (took < best) best = took;
  }
  return (int)(200 * ns / (best > 0 ? best : 1)) + 1;
}

static int available_cores(void) {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int)count : 1;
}

static void before_fork(void) { pthread_mutex_lock(&pool.callers); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&pool.callers); }
static void after_fork_in_child(void) {               /* only the forking thread survives: no workers, no waiters */
  pthread_mutex_init(&pool.callers, NULL);
  pool.workers = 0;
  for (int i = 0; i < WS_MAX_THREADS; i++) pool.orders[i].start = (counter){0};
  pool.done = pool.phase = (counter){0};
  pool.arrived = 0;
}

__attribute__((constructor)) static void prepare_for_forks(void) {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Start workers with all signals blocked, so that only Python's own threads handle signals. */
static int start_workers(int wanted) {
  if (pool.workers >= wanted) return 0;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  while (pool.workers < wanted && !error) {
    pthread_t thread;
    error = pthread_create(&thread, NULL, work, (void *)(intptr_t)(pool.workers + 1));
    if (!error) pthread_detach(thread), pool.workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
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
  unsigned mode = ws_flush_denormals();
  inside_run = 1;
  note_core();
  body(argument, 0, threads);
  inside_run = 0;
  ws_restore_denormals(mode);
  for (int done; (done = load(&pool.done)) < threads - 1;) wait_while(&pool.done, done, WORK_NS);
}

static int run_apart(ws_body body, void *argument) {
  unsigned mode = ws_flush_denormals();
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
  pthread_mutex_lock(&pool.callers);
  if (!pool.cores) pool.cores = available_cores(), pool.spins = spins_in(TURN_NS);
  int error = start_workers(threads - 1);
  if (!error) run_locked(body, argument, threads);
  pthread_mutex_unlock(&pool.callers);
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
