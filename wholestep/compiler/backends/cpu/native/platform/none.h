/* No operating system: one thread, no clock, no libc.  The program that links this brings memcpy, memmove and memset,
   which compilers call for copies, and the functions of libm that its plan calls (sin, cos, erf and pow of doubles, fmod).
   The clock stands still, so that a loop over steps has no time limit. */
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);

enum { EINVAL = 22, EDOM = 33, EDEADLK = 35, ETIMEDOUT = 110 };

#define WS_AT_LOAD __attribute__((unused))
#define WS_THREAD_LOCAL
#define WS_MUTEX 0
#define WS_THREAD(name, argument) static inline void *name(void *argument)
#define WS_THREAD_END return NULL
typedef int ws_mutex, ws_thread;

static inline int64_t ws_now_ns(void) { return 0; }
static inline int ws_core(void) { return -1; }
static inline int ws_cores(void) { return 1; }
static inline void ws_yield(void) {}
static inline void ws_nap(int64_t ns) { (void)ns; }
static inline void ws_wait_word(int *word, int old, int64_t ns) { (void)word, (void)old, (void)ns; }
static inline void ws_wake_word(int *word) { (void)word; }
static inline void ws_lock(ws_mutex *m) { (void)m; }
static inline void ws_unlock(ws_mutex *m) { (void)m; }
static inline int ws_start_thread(ws_thread *thread, void *(*body)(void *), void *argument) {
  (void)thread, (void)body, (void)argument;
  return EINVAL;                                      /* a run with more than one thread is refused */
}
static inline void ws_detach_thread(ws_thread thread) { (void)thread; }
static inline void ws_join_thread(ws_thread thread) { (void)thread; }
static inline void ws_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  (void)before, (void)in_parent, (void)in_child;
}
