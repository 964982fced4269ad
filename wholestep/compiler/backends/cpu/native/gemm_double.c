/* The products of doubles: a library of its own, built when a plan first needs it. */
#define WS_DOUBLE
#include "gemm.c"

/* Fills in what the library's table leaves open. */
WS_EXPORT void ws_add_double(ws_api *table) { table->gemm_f64 = ws_gemm_f64; }
