/* Runs one step of a plan as a program of its own: reads what a step is given from a file, writes the buffers to another.

   The file: threads, fence, bytes of the arena and of a thread's workspace, slots of the prologue, seed, step; dimensions
   and scalars, each after their number; the number of buffers, the bytes of each, and their content.  Numbers have 8
   bytes. */
#include "runtime.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef _WIN32
#include <malloc.h>
#define aligned_alloc(alignment, bytes) _aligned_malloc(bytes, alignment)
#endif

void ws_add_double(ws_api *table);
void ws_add_half(ws_api *table);
void ws_prologue(const ws_call *call);
void ws_entry(const ws_call *call, int id, int threads);
void ws_refresh(const ws_call *call);

static FILE *file;

static void *read_bytes(size_t bytes) {
  void *to = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (!to || fread(to, 1, bytes, file) != bytes) exit(2);
  return to;
}

static int64_t number(void) {
  int64_t n;
  if (fread(&n, sizeof n, 1, file) != 1) exit(2);
  return n;
}

static void *poisoned(size_t bytes) { return memset(aligned_alloc(64, (bytes + 64) / 64 * 64), 255, bytes); }

static void write_bytes(const void *from, size_t bytes) {
  if (fwrite(from, 1, bytes, file) != bytes) exit(3);
}

int main(int count, char **names) {
  if (count != 3 || !(file = fopen(names[1], "rb"))) return 1;
  ws_call call = {.api = &ws_api_table};
  const int threads = (int)number();
  const size_t fence = (size_t)number(), arena = (size_t)number() + fence;
  call.work_bytes = (long)number();
  const size_t work = (size_t)threads * (size_t)call.work_bytes + fence;
  call.arena = poisoned(arena), call.work = poisoned(work);
  call.derived = poisoned(8 * (size_t)number());
  call.seed = (uint64_t)number(), call.step = (uint64_t)number();
  const size_t dims = (size_t)number();
  long *const sizes = poisoned(dims * sizeof(long));
  for (size_t i = 0; i < dims; i++) sizes[i] = (long)number();
  call.dims = sizes;
  call.scalars = read_bytes(8 * (size_t)number());
  const size_t buffers = (size_t)number();
  void **const at = poisoned(buffers * sizeof *at);
  size_t *const bytes = poisoned(buffers * sizeof *bytes);
  for (size_t i = 0; i < buffers; i++) bytes[i] = (size_t)number();
  for (size_t i = 0; i < buffers; i++) at[i] = read_bytes(bytes[i]);
  call.buffers = at;
  fclose(file);

  ws_add_double(&ws_api_table), ws_add_half(&ws_api_table);
  ws_refresh(&call);
  const ws_step_call step = {.prologue = ws_prologue, .entry = ws_entry, .call = &call, .threads = threads};
  const int error = ws_step(&step);
  if (error) return 100 + error;
  if (!(file = fopen(names[2], "wb"))) return 4;
  for (size_t i = 0; i < buffers; i++) write_bytes(at[i], bytes[i]);
  write_bytes(call.arena, arena), write_bytes(call.work, work);
  return fclose(file) ? 5 : 0;
}
