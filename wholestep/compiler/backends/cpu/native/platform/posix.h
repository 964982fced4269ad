/* What Linux and macOS share: clock, threads, locks and forks by POSIX. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WS_AT_LOAD __attribute__((constructor))
#define WS_THREAD_LOCAL __thread
#define WS_MUTEX PTHREAD_MUTEX_INITIALIZER
#define WS_THREAD(name, argument) static void *name(void *argument)
#define WS_THREAD_END return NULL
typedef pthread_mutex_t ws_mutex;
typedef pthread_t ws_thread;

static inline int64_t ws_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void ws_yield(void) { sched_yield(); }
static inline void ws_nap(int64_t ns) { nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL); }
static inline void ws_lock(ws_mutex *m) { pthread_mutex_lock(m); }
static inline void ws_unlock(ws_mutex *m) { pthread_mutex_unlock(m); }

/* A thread inherits the mask of its creator: all signals are blocked while it starts. */
static inline int ws_start_thread(ws_thread *thread, void *(*body)(void *), void *argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, NULL, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}
static inline void ws_detach_thread(ws_thread thread) { pthread_detach(thread); }
static inline void ws_join_thread(ws_thread thread) { pthread_join(thread, NULL); }
static inline void ws_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  pthread_atfork(before, in_parent, in_child);
}
