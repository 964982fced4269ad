/* Copies rows into memory that a GPU reads next, with several threads and non-temporal stores: the CPU does not read that
   memory again, so caching it would evict what it does read. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { LINE = 64 };                                   /* bytes of a cache line */
enum { SHORT = 2 * LINE, MOST_THREADS = 8, STACK = 256 << 10 }; /* bytes, threads, bytes */

/* Copy complete cache lines; `to` is a multiple of LINE. */
#if defined(__AVX512F__)
static void copy_lines(char *to, const char *from, long bytes) {
  for (long i = 0; i < bytes; i += LINE) _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512(from + i));
}
#elif defined(__AVX2__)
static void copy_lines(char *to, const char *from, long bytes) {
  for (long i = 0; i < bytes; i += LINE) {
    const __m256i first = _mm256_loadu_si256((const void *)(from + i));
    const __m256i second = _mm256_loadu_si256((const void *)(from + i + LINE / 2));
    _mm256_stream_si256((void *)(to + i), first);
    _mm256_stream_si256((void *)(to + i + LINE / 2), second);
  }
}
#else
static void copy_lines(char *to, const char *from, long bytes) { memcpy(to, from, (size_t)bytes); }
#endif

static void copy(char *to, const char *from, long bytes) {
  if (bytes < SHORT) {
    memcpy(to, from, (size_t)bytes);
    return;
  }
  const long before = -(uintptr_t)to % LINE, lines = (bytes - before) / LINE * LINE, after = before + lines;
  memcpy(to, from, (size_t)before);
  copy_lines(to + before, from + before, lines);
  memcpy(to + after, from + after, (size_t)(bytes - after));
}

/* Rows of `bytes` bytes, contiguous unless `rows` lists them; threads take `step` rows at a time. */
typedef struct {
  char *to;
  const char *from;
  const int64_t *rows;
  long count, bytes, step;
  long next;
} job;

static void *work(void *argument) {
  job *const j = argument;
  for (;;) {
    const long first = __atomic_fetch_add(&j->next, j->step, __ATOMIC_RELAXED);
    if (first >= j->count) break;
    const long end = j->count - first < j->step ? j->count : first + j->step;
    if (!j->rows) copy(j->to + first * j->bytes, j->from + first * j->bytes, (end - first) * j->bytes);
    else
      for (long i = first; i < end; i++) copy(j->to + i * j->bytes, j->from + j->rows[i] * j->bytes, j->bytes);
  }
#ifdef __AVX2__
  _mm_sfence(); /* non-temporal stores are visible before anybody is notified */
#endif
  return NULL;
}

/* Copy rows with up to `threads` threads; if the system can start only some of them, these copy all rows. */
EXPORT void ws_copy_rows(void *to, const void *from, const int64_t *rows, long count, long bytes, long step,
                         int threads) {
  job j = {to, from, rows, count, bytes, step, 0};
  pthread_t others[MOST_THREADS - 1];
  pthread_attr_t small;
  sigset_t all, before;
  int started = 0;
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  sigfillset(&all); /* only Python's own threads handle signals */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, STACK);
  while (started < threads - 1 && !pthread_create(&others[started], &small, work, &j)) started++;
  pthread_attr_destroy(&small);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  work(&j);
  for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
}
