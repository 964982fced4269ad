/* Copies rows into memory that a GPU reads next, with several threads and non-temporal stores: the CPU does not read that
   memory again, so caching it would evict data that is read. */
#include "platform.h"
#include "processor.h"

#define EXPORT __attribute__((visibility("default")))

enum { LINE = 64 };                                   /* bytes of a cache line */
enum { SHORTEST = 2 * LINE, MOST_THREADS = 8 };

/* Copy complete cache lines; `to` is a multiple of LINE. */
static void copy_lines(char *to, const char *from, long bytes) {
  for (long i = 0; i < bytes; i += LINE) ws_stream_line(to + i, from + i);
}

static void copy(char *to, const char *from, long bytes) {
  if (bytes < SHORTEST) {
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

WS_THREAD(work, argument) {
  job *const j = argument;
  for (;;) {
    const long first = __atomic_fetch_add(&j->next, j->step, __ATOMIC_RELAXED);
    if (first >= j->count) break;
    const long end = j->count - first < j->step ? j->count : first + j->step;
    if (!j->rows) copy(j->to + first * j->bytes, j->from + first * j->bytes, (end - first) * j->bytes);
    else
      for (long i = first; i < end; i++) copy(j->to + i * j->bytes, j->from + j->rows[i] * j->bytes, j->bytes);
  }
  ws_finish_streams();                                /* non-temporal stores are visible before anybody is notified */
  WS_THREAD_END;
}

/* Copy rows with up to `threads` threads; if the system can start only some of them, these copy all rows. */
EXPORT void ws_copy_rows(void *to, const void *from, const int64_t *rows, long count, long bytes, long step,
                         int threads) {
  job j = {to, from, rows, count, bytes, step, 0};
  ws_thread others[MOST_THREADS - 1];
  int started = 0;
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  while (started < threads - 1 && !ws_start_thread(&others[started], work, &j)) started++;
  work(&j);
  for (int i = 0; i < started; i++) ws_join_thread(others[i]);
}
