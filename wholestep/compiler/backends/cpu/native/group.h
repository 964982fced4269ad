/* Process groups: the ranks that compute one step together, as processes or as threads of one process.  Every rank runs
   the same program over its own rows, so all ranks reach the same collectives in the same order.

   Every engine adds in the same order: the sum over ranks lo .. hi-1 is the sum of the first (hi - lo + 1) / 2 of them plus
   the sum of the rest, recursively.  So all ranks compute the same bits, and n ranks of one engine compute the bits of n
   ranks of any other engine.

   Ranks form a mesh.  A group consists of the ranks along the data axis, which have different rows; its field `model` is
   the group of the ranks along the model axis, which have the same rows and different parts of the layers. */
#ifndef WS_GROUP_H
#define WS_GROUP_H
#include "ws.h"
#include "platform.h"

enum { WS_GROUP_F32, WS_GROUP_F64, WS_GROUP_I32, WS_GROUP_I64 };   /* dtype of the elements of a collective */

/* One tensor of a collective, which may have several. */
typedef struct {
  const void *from;
  void *to;                                           /* may equal `from` if both have the same number of elements */
  long count;                                         /* elements of `from` and of `to`; in a reduce-scatter `from` has
                                                         count * size elements, in an all-gather `to` has */
} ws_share;

typedef int (*ws_collective)(ws_group *, const ws_share *, int shares, int dtype);

/* A collective returns 0 or an errno: ETIMEDOUT if other ranks did not reach it in time, EPIPE if a rank has ended.  The
   first error is stored in `failed`; after it every collective returns this error without communication, and loops end. */
struct ws_group {
  int rank, size, failed;
  double timeout;                                     /* seconds that a collective waits for the other ranks */
  ws_collective all_reduce;                           /* to = the sum of `from` over all ranks */
  ws_collective reduce_scatter;                       /* to = this rank's part of that sum */
  ws_collective all_gather;                           /* to = `from` of all ranks, in rank order */
  ws_collective broadcast;                            /* to = `from` of rank 0 */
  void *engine;                                       /* the engine's own data */
  uint64_t step;                                      /* the running step: loops set it, errors name it */
  ws_group *model;                                    /* the group along the model axis; NULL: one rank along it */
};

/* The collective that plans call along the data axis.  Without a group, the result is a copy of this rank's operand. */
enum { WS_ALL_REDUCE, WS_REDUCE_SCATTER, WS_ALL_GATHER, WS_BROADCAST };
static inline void ws_exchange(ws_group *group, int kind, const ws_share *shares, int count, int dtype) {
  if (!group || group->size == 1) {
    const size_t bytes = dtype == WS_GROUP_F32 || dtype == WS_GROUP_I32 ? 4 : 8;
    for (int i = 0; i < count; i++)
      if (shares[i].to != shares[i].from) memcpy(shares[i].to, shares[i].from, shares[i].count * bytes);
    return;
  }
  if (group->failed) return;
  const ws_collective calls[] = {group->all_reduce, group->reduce_scatter, group->all_gather, group->broadcast};
  const int error = calls[kind](group, shares, count, dtype);
  if (error) group->failed = error;
}

/* The collective that plans call along the model axis.  An error is also stored in the group of the data axis, which loops
   check. */
static inline void ws_exchange_model(ws_group *group, int kind, const ws_share *shares, int count, int dtype) {
  if (group && group->failed) return;
  ws_exchange(group ? group->model : NULL, kind, shares, count, dtype);
  if (group && group->model && group->model->failed) group->failed = group->model->failed;
}
#endif
