/* A processor without inline assembly of its own, such as WebAssembly: subnormals are not flushed to zero. */
typedef unsigned ws_fp_mode;
static inline void ws_pause(void) { __asm__ volatile("" ::: "memory"); }
static inline ws_fp_mode ws_flush_denormals(void) { return 0; }
static inline void ws_restore_denormals(ws_fp_mode before) { (void)before; }
static inline void ws_stream_line(char *to, const char *from) { __builtin_memcpy(to, from, 64); }
static inline void ws_finish_streams(void) {}
