/* The functions that a compiler calls implicitly, for targets without a C library. */
#include <stddef.h>
#define PLAIN __attribute__((no_builtin("memcpy", "memmove", "memset"), noinline))

PLAIN void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
  char *a = to;
  for (const char *b = from; bytes; bytes--) *a++ = *b++;
  return to;
}

PLAIN void *memmove(void *to, const void *from, size_t bytes) {
  char *a = to;
  const char *b = from;
  if (a <= b)
    while (bytes--) *a++ = *b++;
  else
    while (bytes--) a[bytes] = b[bytes];
  return to;
}

PLAIN void *memset(void *to, int value, size_t bytes) {
  for (char *a = to; bytes; bytes--) *a++ = (char)value;
  return to;
}
