/* The tensors of a collective, addressed as one vector (`row`) of elements.

   A collective has several tensors (shares), but ranks exchange pieces of about equal size: a piece is a range of the vector,
   which may begin in one tensor and end in another.  `gather` returns a piece contiguously, `scatter` writes one back; a piece
   that is inside one tensor is not copied.  A share that is scattered or gathered among ranks has one block of `count`
   elements for each rank; `block` is its number.
   Invariant: all ranks have tensors of the same sizes in the same order, so a range means the same elements everywhere. */
#ifndef WS_GROUP_ROWS_H
#define WS_GROUP_ROWS_H
#include "group_sums.h"

typedef struct {
  const ws_share *shares;
  long count, bytes;                                  /* elements of all shares together; bytes per element */
} row;

typedef struct { long share, offset; } place;         /* position of an element of the vector */

/* The share and offset of element `first`, which must exist. */
static place find(const row *r, long first) {
  place at = {0, first};
  while (at.offset >= r->shares[at.share].count) at.offset -= r->shares[at.share].count, at.share++;
  return at;
}

/* The number of contiguous elements from `at` to the end of the share it is in, at most `most`. */
static long together(const row *r, place at, long most) {
  const long left = r->shares[at.share].count - at.offset;
  return left < most ? left : most;
}

static const char *source(const row *r, place at, long block) {
  const ws_share *s = &r->shares[at.share];
  return (const char *)s->from + (block * s->count + at.offset) * r->bytes;
}

static char *target(const row *r, place at, long block) {
  const ws_share *s = &r->shares[at.share];
  return (char *)s->to + (block * s->count + at.offset) * r->bytes;
}

static place next(const row *r, place at, long count) {
  at.offset += count;
  while (at.offset >= r->shares[at.share].count) at.offset -= r->shares[at.share].count, at.share++;
  return at;
}

/* `count` elements from `first` on, contiguously: in place if they belong to one share, else copied to `room`. */
static const char *gather(const row *r, long first, long count, long block, char *room) {
  place at = find(r, first);
  if (count == 0 || together(r, at, count) == count) return count ? source(r, at, block) : room;
  for (char *to = room; count > 0;) {
    const long here = together(r, at, count);
    memcpy(to, source(r, at, block), (size_t)(here * r->bytes));
    to += here * r->bytes, count -= here;
    if (count) at = next(r, at, here);
  }
  return room;
}

static void scatter(const row *r, long first, long count, long block, const char *from) {
  if (count == 0) return;
  for (place at = find(r, first); count > 0;) {
    const long here = together(r, at, count);
    char *to = target(r, at, block);
    if (to != from) memcpy(to, from, (size_t)(here * r->bytes));
    from += here * r->bytes, count -= here;
    if (count) at = next(r, at, here);
  }
}

/* The address in `to` of `count` elements from `first` on; NULL unless they are contiguous there. */
static char *whole_target(const row *r, long first, long count, long block) {
  if (count == 0) return NULL;
  const place at = find(r, first);
  return together(r, at, count) == count ? target(r, at, block) : NULL;
}

static row row_of(const ws_share *shares, int count, int dtype) {
  row r = {.shares = shares, .bytes = ws_group_bytes(dtype)};
  for (int s = 0; s < count; s++) r.count += shares[s].count;
  return r;
}
#endif
