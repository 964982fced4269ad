/* Event log of kernels and barriers, which only the profiled build of a plan includes.

   Each thread appends (kernel, begin, end) to a log of its own, on its own cache lines, so that logging needs no
   synchronisation.  Invariant: a full log drops events and never writes past its room. */
#ifndef WS_PROFILE_H
#define WS_PROFILE_H
#include "platform.h"

typedef struct {
  int64_t kernel;                       /* id of the kernel in the plan, or -1 for the wait at a barrier */
  int64_t begin, end;                   /* ns of ws_now_ns */
} ws_event;

/* One log per thread, on its own cache lines; the reader sets `events` and `room`, and reads `count` events. */
typedef struct {
  _Alignas(64) ws_event *events;
  int64_t room, count;
} ws_event_log;

WS_EXPORT ws_event_log ws_events[64];

static inline void ws_note(int id, long kernel, int64_t begun) {
  ws_event_log *log = &ws_events[id];
  if (log->count < log->room) log->events[log->count++] = (ws_event){kernel, begun, ws_now_ns()};
}
#endif
