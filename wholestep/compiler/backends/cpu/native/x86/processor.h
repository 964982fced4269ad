/* x86-64: MXCSR, `pause`, and non-temporal stores by AVX. */
typedef unsigned ws_fp_mode;
static inline void ws_pause(void) { __builtin_ia32_pause(); }
static inline ws_fp_mode ws_flush_denormals(void) {
  const ws_fp_mode before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040u);           /* FTZ and DAZ */
  return before;
}
static inline void ws_restore_denormals(ws_fp_mode before) { __builtin_ia32_ldmxcsr(before); }

/* Statements of assembler, since the header of the intrinsics takes longer to compile than the library's files. */
typedef char ws_half_line __attribute__((vector_size(32), aligned(1), may_alias));
static inline void ws_stream_line(char *to, const char *from) {
#ifdef __AVX2__
  for (int i = 0; i < 64; i += 32) {
    const ws_half_line half = *(const ws_half_line *)(from + i);
    __asm__ volatile("vmovntdq %1,%0" : "=m"(*(ws_half_line *)(to + i)) : "x"(half));
  }
#else
  __builtin_memcpy(to, from, 64);
#endif
}
static inline void ws_finish_streams(void) { __builtin_ia32_sfence(); }
