/* Ranks that make one step together: processes, or threads of one process.  Every rank runs the same program over its
   own rows, so all of them come to the same collectives in the same order.

   What is added is added in one order, whatever carries it: over ranks lo .. hi-1 the sum is that of the first
   (hi - lo + 1) / 2 of them plus that of the rest, and so on.  So all ranks have the same bits, and n ranks of any engine
   have those of n ranks of any other.

   Ranks stand in a grid.  A group is those along its data axis, which have different rows; it knows those along the model
   axis, which have the same rows and parts of layers. */
#ifndef WS_GROUP_H
#define WS_GROUP_H
#include "ws.h"
#include <string.h>

enum { WS_GROUP_F32, WS_GROUP_F64, WS_GROUP_I32, WS_GROUP_I64 };   /* of the elements of a collective */

/* A tensor of a collective; several of them are one exchange. */
typedef struct {
  const void *from;
  void *to;                                           /* may be `from` where the counts agree */
  long count;                                         /* elements: of `from` and `to`; the larger has count * size of them
                                                         where a collective scatters (from) or gathers (to) */
} ws_share;

typedef int (*ws_collective)(ws_group *, const ws_share *, int shares, int dtype);

/* 0, or an errno: ETIMEDOUT where the others did not come, EPIPE where one of them is gone.  `failed` keeps the first of
   them; from then on nothing is exchanged, every collective answers with it, and loops end. */
struct ws_group {
  int rank, size, failed;
  double timeout;                                     /* seconds that a collective waits */
  ws_collective all_reduce;                           /* to = sum of all ranks' from */
  ws_collective reduce_scatter;                       /* to = this rank's part of that sum */
  ws_collective all_gather;                           /* to = all ranks' from, one after the other */
  ws_collective broadcast;                            /* to = rank 0's from */
  void *engine;                                       /* of the engine's own */
  uint64_t step;                                      /* that is under way; loops say it, errors name it */
  ws_group *model;                                    /* along the model axis; NULL: alone there */
};

/* What a plan calls.  Without a group, a rank is alone: it has what it gave. */
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

/* The same among the ranks with the same rows.  A loop sees the failures of a group along the data axis. */
static inline void ws_exchange_model(ws_group *group, int kind, const ws_share *shares, int count, int dtype) {
  if (group && group->failed) return;
  ws_exchange(group ? group->model : NULL, kind, shares, count, dtype);
  if (group && group->model && group->model->failed) group->failed = group->model->failed;
}
#endif
