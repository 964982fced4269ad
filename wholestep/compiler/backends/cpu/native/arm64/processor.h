/* ARM64: FPCR, `yield`, pairs of non-temporal stores. */
typedef uint64_t ws_fp_mode;
static inline void ws_pause(void) { __asm__ volatile("yield" ::: "memory"); }
static inline ws_fp_mode ws_flush_denormals(void) {
  ws_fp_mode before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" ::"r"(before | 1u << 24));  /* FZ */
  return before;
}
static inline void ws_restore_denormals(ws_fp_mode before) { __asm__ volatile("msr fpcr, %0" ::"r"(before)); }

static inline void ws_stream_line(char *to, const char *from) {
  __asm__ volatile(
      "ldp q0, q1, [%1]\n\tldp q2, q3, [%1, #32]\n\tstnp q0, q1, [%0]\n\tstnp q2, q3, [%0, #32]"
      ::"r"(to), "r"(from) : "v0", "v1", "v2", "v3", "memory");
}
static inline void ws_finish_streams(void) { __asm__ volatile("dmb ishst" ::: "memory"); }
