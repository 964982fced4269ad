/* What the runtime library exports.  Plans see only the table in ws.h; Python and the tests see these by name. */
#ifndef WS_RUNTIME_H
#define WS_RUNTIME_H
#include "ws.h"

#define WS_EXPORT __attribute__((visibility("default")))
#define WS_MAX_THREADS 64

typedef void (*ws_body)(void *argument, int id, int threads);

/* Run body(argument, id, threads) for id = 0 .. threads-1 and wait for all; the caller is id 0.
   0, or an errno: EINVAL (threads outside 1 .. WS_MAX_THREADS), EDEADLK (called from inside a run), or why a thread
   could not be started.  On an error nothing has run. */
WS_EXPORT int ws_pool_run(ws_body body, void *argument, int threads);
/* Wait until every thread of the current run is here. */
WS_EXPORT void ws_barrier(void);

WS_EXPORT void ws_gemm_f32(const ws_gemm *);
WS_EXPORT void ws_gemm_f64(const ws_gemm *);

WS_EXPORT extern const ws_api ws_api_table;
#endif
