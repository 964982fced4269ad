#include "ws.h"
#include "reduce.h"
#include "turn.h"
#include "math_prologue.h"
#undef WS_EXPORT
#define WS_EXPORT __attribute__((visibility("default")))


static void ws_k0(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3, float *restrict block) {
  for (long n0 = 0; n0 < 16; n0 += 64) {
    const long nb = 16 - n0 < 64 ? 16 - n0 : 64;
    for (long m0 = lo; m0 < hi; m0 += 48) {
      const long mb = hi - m0 < 48 ? hi - m0 : 48;
      const ws_gemm product = {mb, nb, 20,
        x1 + m0*20, 20, 1, 16,
        x2 + ((n0)/16)*320 + ((n0)%16), 16, 320, block, 16, 768};
      call->api->gemm_f32(&product);
      for (long q = 0; q < (nb + 15)/16; q++) {
        const long p = n0/16 + q;
        for (long i0 = m0; i0 < m0 + mb; i0++) {
          const float *const acc = block + (q*48 + i0 - m0)*16;
          #pragma omp simd
          for (long l = 0; l < 16; l++) {
            const float v1 = x0[(p*16 + l)];
            const float v2 = (acc[l] + v1);
            const float v3 = (v2 <= 0 ? 0x0.0p+0f : v2);
            x3[i0*16 + (p*16 + l)] = v3;
          }
        }
      }
    }
  }
}

static void ws_k1(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3, float *restrict block) {
  for (long n0 = 0; n0 < 3; n0 += 64) {
    const long nb = 3 - n0 < 64 ? 3 - n0 : 64;
    for (long m0 = lo; m0 < hi; m0 += 48) {
      const long mb = hi - m0 < 48 ? hi - m0 : 48;
      const ws_gemm product = {mb, nb, 16,
        x1 + m0*16, 16, 1, 16,
        x2 + n0, 3, 16, block, 16, 768};
      call->api->gemm_f32(&product);
      for (long q = 0; q < (nb + 15)/16; q++) {
        const long p = n0/16 + q;
        for (long i0 = m0; i0 < m0 + mb; i0++) {
          const float *const acc = block + (q*48 + i0 - m0)*16;
          #pragma omp simd
          for (long l = 0; l < 16; l++) {
            const float v0 = l < 3 ? acc[l] : 0;
            const float v1 = l < 3 ? x0[(p*16 + l)] : 0;
            const float v2 = (v0 + v1);
            if (l < 3) x3[i0*3 + (p*16 + l)] = v2;
          }
        }
      }
    }
  }
}

static void ws_k2(const ws_call *call, long lo, long hi, int32_t *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3, float *restrict x4) {
  const long d0 = call->dims[0];
  const float s0 = (float)call->derived[0];
  for (long i0 = lo; i0 < hi; i0++) {
    const int32_t v11 = x0[i0];
    float r1[16]; for (int l = 0; l < 16; l++) r1[l] = -__builtin_inff();
     {
      const long p = (3)/16;
      #pragma omp simd
      for (long l = 0; l < 16; l++) {
        const float v0 = l < 3 ? x1[i0*3 + (p*16 + l)] : 0;
        r1[l] = ws_max_f32(r1[l], (l < 3 ? v0 : -__builtin_inff()));
      }
    }
    const float v1 = ws_lanes_max_f32(r1);
    float r5[16]; for (int l = 0; l < 16; l++) r5[l] = 0;
     {
      const long p = (3)/16;
      #pragma omp simd simdlen(16)
      for (long l = 0; l < 16; l++) {
        const float v2 = l < 3 ? x1[i0*3 + (p*16 + l)] : 0;
        const float v3 = (v2 - v1);
        const float v4 = ws_exp_f32(v3);
        r5[l] = (r5[l] + (l < 3 ? v4 : 0));
        x2[(p*16 + l)] = v4;
      }
    }
    const float v5 = ws_lanes_sum_f32(r5);
    const float v6 = ws_log_f32(v5);
    float r17[16]; for (int l = 0; l < 16; l++) r17[l] = 0;
     {
      const long p = (3)/16;
      #pragma omp simd
      for (long l = 0; l < 16; l++) {
        const float v7 = l < 3 ? x1[i0*3 + (p*16 + l)] : 0;
        const float v8 = (v7 - v1);
        const float v9 = (v8 - v6);
        const int32_t v13 = (int32_t)((p*16 + l));
        const int v14 = (v13 == v11);
        const float v16 = (v14 ? v9 : 0x0.0p+0f);
        const float v19 = x2[(p*16 + l)];
        const float v20 = (v19 / v5);
        const float v25 = (v14 ? 0x1.0000000000000p+0f : 0x0.0p+0f);
        const float v26 = (v20 - v25);
        const float v28 = (v26 * s0);
        r17[l] = (r17[l] + (l < 3 ? v16 : 0));
        x3[i0*16 + p*16*d0 + l] = v28;
      }
    }
    const float v17 = ws_lanes_sum_f32(r17);
    const float v18 = (-v17);
    x4[i0] = v18;
  }
}

static void ws_k3(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3, float *restrict block) {
  const long d0 = call->dims[0];
  for (long n0 = 0; n0 < 16; n0 += 64) {
    const long nb = 16 - n0 < 64 ? 16 - n0 : 64;
    for (long m0 = lo; m0 < hi; m0 += 48) {
      const long mb = hi - m0 < 48 ? hi - m0 : 48;
      const ws_gemm product = {mb, nb, 3,
        x1 + m0*16, 16, 1, 16*d0,
        x2 + ((n0)/16)*48 + ((n0)%16), 16, 48, block, 16, 768};
      call->api->gemm_f32(&product);
      for (long q = 0; q < (nb + 15)/16; q++) {
        const long p = n0/16 + q;
        for (long i0 = m0; i0 < m0 + mb; i0++) {
          const float *const acc = block + (q*48 + i0 - m0)*16;
          #pragma omp simd
          for (long l = 0; l < 16; l++) {
            const float v2 = x0[i0*16 + (p*16 + l)];
            const int v3 = (0x0.0p+0f < v2);
            const float v4 = (v3 ? acc[l] : 0x0.0p+0f);
            x3[i0*16 + p*16*d0 + l] = v4;
          }
        }
      }
    }
  }
}

static void ws_k4(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1) {
  const long d0 = call->dims[0];
  const float s0 = (float)call->derived[1];
  float r1[16]; for (int l = 0; l < 16; l++) r1[l] = 0;
  for (long p = 0; p < (d0)/16; p++) {
    #pragma omp simd
    for (long l = 0; l < 16; l++) {
      const float v0 = x0[(p*16 + l)];
      r1[l] = (r1[l] + v0);
    }
  }
  if ((d0)%16 && 0 < d0) {
    const long p = (d0)/16;
    #pragma omp simd
    for (long l = 0; l < (d0)%16; l++) {
      const float v0 = x0[(p*16 + l)];
      r1[l] = (r1[l] + v0);
    }
  }
  const float v1 = ws_lanes_sum_f32(r1);
  const float v3 = (v1 / s0);
  x1[0] = v3;
}

static void ws_k5(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3, float *restrict x4, float *restrict block) {
  const long d0 = call->dims[0];
  const float s0 = (float)call->derived[2];
  const float s1 = (float)call->derived[3];
  const float s2 = (float)call->derived[4];
  const float s3 = (float)call->derived[5];
  const float s4 = (float)call->derived[6];
  const float s5 = (float)call->derived[7];
  const float s6 = (float)call->derived[8];
  for (long n0 = 0; n0 < 16; n0 += 64) {
    const long nb = 16 - n0 < 64 ? 16 - n0 : 64;
    for (long m0 = lo; m0 < hi; m0 += 48) {
      const long mb = hi - m0 < 48 ? hi - m0 : 48;
      const ws_gemm product = {mb, nb, d0,
        x3 + m0, 1, 20, 320,
        x4 + ((n0)/16)*16*d0 + ((n0)%16), 16, 16*d0, block, 16, 768};
      call->api->gemm_f32(&product);
      for (long q = 0; q < (nb + 15)/16; q++) {
        const long p = n0/16 + q;
        for (long i0 = m0; i0 < m0 + mb; i0++) {
          const float *const acc = block + (q*48 + i0 - m0)*16;
          #pragma omp simd
          for (long l = 0; l < 16; l++) {
            const float v2 = (s0 * acc[l]);
            const float v4 = x0[i0*16 + p*320 + l];
            const float v5 = (s1 * v4);
            const float v6 = (v5 + v2);
            const float v8 = (s2 * acc[l]);
            const float v9 = (v8 * acc[l]);
            const float v11 = x1[i0*16 + p*320 + l];
            const float v12 = (s3 * v11);
            const float v13 = (v12 + v9);
            const float v15 = (s4 * v6);
            const float v16 = ws_sqrt_f32(v13);
            const float v18 = (v16 * s5);
            const float v20 = (v18 + s6);
            const float v21 = (v15 / v20);
            const float v22 = x2[i0*16 + p*320 + l];
            const float v23 = (v22 - v21);
            x0[i0*16 + p*320 + l] = v6;
            x1[i0*16 + p*320 + l] = v13;
            x2[i0*16 + p*320 + l] = v23;
          }
        }
      }
    }
  }
}

static void ws_k6(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3) {
  const long d0 = call->dims[0];
  const float s0 = (float)call->derived[2];
  const float s1 = (float)call->derived[3];
  const float s2 = (float)call->derived[4];
  const float s3 = (float)call->derived[5];
  const float s4 = (float)call->derived[6];
  const float s5 = (float)call->derived[7];
  const float s6 = (float)call->derived[8];
  for (long p = lo; p < hi; p += 16) {
    float r1[16][16];
    __builtin_memset(r1, 0, sizeof r1);
    for (long i1 = 0; i1 < d0; i1++) {
      float *const lane1 = r1[i1 & 15];
      #pragma omp simd
      for (long l = 0; l < 16; l++) {
        const float v0 = x0[i1*16 + (p/16)*16*d0 + l];
        lane1[l] = (lane1[l] + v0);
      }
    }
    ws_columns_sum_f32(r1);
    #pragma omp simd
    for (long l = 0; l < 16; l++) {
      const float v3 = (s0 * r1[0][l]);
      const float v5 = x1[(p + l)];
      const float v6 = (s1 * v5);
      const float v7 = (v6 + v3);
      const float v9 = (s2 * r1[0][l]);
      const float v10 = (v9 * r1[0][l]);
      const float v12 = x2[(p + l)];
      const float v13 = (s3 * v12);
      const float v14 = (v13 + v10);
      const float v16 = (s4 * v7);
      const float v17 = ws_sqrt_f32(v14);
      const float v19 = (v17 * s5);
      const float v21 = (v19 + s6);
      const float v22 = (v16 / v21);
      const float v23 = x3[(p + l)];
      const float v24 = (v23 - v22);
      x1[(p + l)] = v7;
      x2[(p + l)] = v14;
      x3[(p + l)] = v24;
    }
  }
}

static void ws_k7(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3, float *restrict x4, float *restrict x5, float *restrict block) {
  const long d0 = call->dims[0];
  const float s0 = (float)call->derived[2];
  const float s1 = (float)call->derived[3];
  const float s2 = (float)call->derived[4];
  const float s3 = (float)call->derived[5];
  const float s4 = (float)call->derived[6];
  const float s5 = (float)call->derived[7];
  const float s6 = (float)call->derived[8];
  for (long n0 = 0; n0 < 3; n0 += 64) {
    const long nb = 3 - n0 < 64 ? 3 - n0 : 64;
    for (long m0 = lo; m0 < hi; m0 += 48) {
      const long mb = hi - m0 < 48 ? hi - m0 : 48;
      const ws_gemm product = {mb, nb, d0,
        x3 + m0, 1, 16, 256,
        x4 + ((n0)/16)*16*d0 + ((n0)%16), 16, 16*d0, block, 16, 768};
      call->api->gemm_f32(&product);
      for (long q = 0; q < (nb + 15)/16; q++) {
        const long p = n0/16 + q;
        for (long i0 = m0; i0 < m0 + mb; i0++) {
          const float *const acc = block + (q*48 + i0 - m0)*16;
          #pragma omp simd
          for (long l = 0; l < 16; l++) {
            const float v0 = l < 3 ? acc[l] : 0;
            const float v2 = (s0 * v0);
            const float v4 = l < 3 ? x0[i0*3 + (p*16 + l)] : 0;
            const float v5 = (s1 * v4);
            const float v6 = (v5 + v2);
            const float v8 = (s2 * v0);
            const float v9 = (v8 * v0);
            const float v11 = l < 3 ? x1[i0*3 + (p*16 + l)] : 0;
            const float v12 = (s3 * v11);
            const float v13 = (v12 + v9);
            const float v15 = (s4 * v6);
            const float v16 = ws_sqrt_f32(v13);
            const float v18 = (v16 * s5);
            const float v20 = (v18 + s6);
            const float v21 = (v15 / v20);
            const float v22 = l < 3 ? x2[i0*3 + (p*16 + l)] : 0;
            const float v23 = (v22 - v21);
            if (l < 3) x0[i0*3 + (p*16 + l)] = v6;
            if (l < 3) x1[i0*3 + (p*16 + l)] = v13;
            if (l < 3) x2[i0*3 + (p*16 + l)] = v23;
          }
        }
      }
      for (long i = m0; i < m0 + mb; i += 16) {
        for (long j = n0; j < n0 + nb; j++) {
          const long w = 16 - i < 16 ? 16 - i : 16;
          for (long l = 0; l < w; l++) x5[(i/16)*3*16 + j*16 + l] = x2[(i + l)*3 + j];
        }
      }
    }
  }
}

static void ws_k8(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1, float *restrict x2, float *restrict x3) {
  const long d0 = call->dims[0];
  const float s0 = (float)call->derived[2];
  const float s1 = (float)call->derived[3];
  const float s2 = (float)call->derived[4];
  const float s3 = (float)call->derived[5];
  const float s4 = (float)call->derived[6];
  const float s5 = (float)call->derived[7];
  const float s6 = (float)call->derived[8];
  for (long p = lo; p < hi; p += 16) {
    float r1[16][16];
    __builtin_memset(r1, 0, sizeof r1);
    for (long i1 = 0; i1 < d0; i1++) {
      float *const lane1 = r1[i1 & 15];
      #pragma omp simd
      for (long l = 0; l < 3; l++) {
        const float v0 = x0[i1*16 + (p/16)*16*d0 + l];
        lane1[l] = (lane1[l] + v0);
      }
    }
    ws_columns_sum_f32(r1);
    #pragma omp simd
    for (long l = 0; l < 3; l++) {
      const float v3 = (s0 * r1[0][l]);
      const float v5 = x1[(p + l)];
      const float v6 = (s1 * v5);
      const float v7 = (v6 + v3);
      const float v9 = (s2 * r1[0][l]);
      const float v10 = (v9 * r1[0][l]);
      const float v12 = x2[(p + l)];
      const float v13 = (s3 * v12);
      const float v14 = (v13 + v10);
      const float v16 = (s4 * v7);
      const float v17 = ws_sqrt_f32(v14);
      const float v19 = (v17 * s5);
      const float v21 = (v19 + s6);
      const float v22 = (v16 / v21);
      const float v23 = x3[(p + l)];
      const float v24 = (v23 - v22);
      x1[(p + l)] = v7;
      x2[(p + l)] = v14;
      x3[(p + l)] = v24;
    }
  }
}

WS_EXPORT void ws_prologue(const ws_call *call) {
  const long d0 = call->dims[0]; (void)d0;
  const double h0 = 0x1.0000000000000p+0; (void)h0;
  const double h1 = (double)(d0); (void)h1;
  const double h2 = (double)(float)h1; (void)h2;
  call->derived[1] = h2;
  const double h3 = (double)(float)((h0 / h2)); (void)h3;
  call->derived[0] = h3;
  const double h4 = 0x1.0000000000000p+0; (void)h4;
  const double h5 = call->scalars[0]; (void)h5;
  const double h6 = (h4 - h5); (void)h6;
  const double h7 = (double)(float)h6; (void)h7;
  call->derived[2] = h7;
  const double h8 = (double)(float)h5; (void)h8;
  call->derived[3] = h8;
  const double h9 = call->scalars[1]; (void)h9;
  const double h10 = (h4 - h9); (void)h10;
  const double h11 = (double)(float)h10; (void)h11;
  call->derived[4] = h11;
  const double h12 = (double)(float)h9; (void)h12;
  call->derived[5] = h12;
  const double h13 = call->scalars[2]; (void)h13;
  const double h14 = call->scalars[3]; (void)h14;
  const double h15 = call->scalars[4]; (void)h15;
  const double h16 = (h14 - h15); (void)h16;
  const double h17 = (h16 + h4); (void)h17;
  const double h18 = ws_prologue_pow(h5, h17); (void)h18;
  const double h19 = (h4 - h18); (void)h19;
  const double h20 = (h13 / h19); (void)h20;
  const double h21 = (double)(float)h20; (void)h21;
  call->derived[6] = h21;
  const double h22 = ws_prologue_pow(h9, h17); (void)h22;
  const double h23 = (h4 - h22); (void)h23;
  const double h24 = ws_sqrt_f64(h23); (void)h24;
  const double h25 = (1.0 / h24); (void)h25;
  const double h26 = (double)(float)h25; (void)h26;
  call->derived[7] = h26;
  const double h27 = call->scalars[5]; (void)h27;
  const double h28 = (double)(float)h27; (void)h28;
  call->derived[8] = h28;
  (void)call;
}

WS_APART void ws_copy0(float *restrict to, const float *restrict from, long rows, long columns) {
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < columns; j++) to[(i/16)*(columns*16) + j*16 + i%16] = from[i*columns + j];
}

WS_EXPORT void ws_refresh(const ws_call *call) {
  const int id = 0; (void)id; (void)call;
  float *const b4 = (float *)call->buffers[4]; (void)b4;
  float *const b20 = (float *)call->buffers[16]; (void)b20;
  ws_copy0(b20, b4, 16, 3);
}

WS_EXPORT void ws_entry(const ws_call *call, int id, int threads) {
  long lo, hi;
  const long d0 = call->dims[0]; (void)d0;
  float *const b0 = (float *)call->buffers[0]; (void)b0;
  int32_t *const b1 = (int32_t *)call->buffers[1]; (void)b1;
  float *const b2 = (float *)call->buffers[2]; (void)b2;
  float *const b3 = (float *)call->buffers[3]; (void)b3;
  float *const b4 = (float *)call->buffers[4]; (void)b4;
  float *const b5 = (float *)call->buffers[5]; (void)b5;
  float *const b6 = (float *)call->buffers[6]; (void)b6;
  float *const b7 = (float *)call->buffers[7]; (void)b7;
  float *const b8 = (float *)call->buffers[8]; (void)b8;
  float *const b9 = (float *)call->buffers[9]; (void)b9;
  float *const b10 = (float *)call->buffers[10]; (void)b10;
  float *const b11 = (float *)call->buffers[11]; (void)b11;
  float *const b12 = (float *)call->buffers[12]; (void)b12;
  float *const b13 = (float *)call->buffers[13]; (void)b13;
  float *const b14 = (float *)call->buffers[14]; (void)b14;
  float *const b15 = (float *)call->buffers[15]; (void)b15;
  float *const b16 = (float *)(call->arena + 0); (void)b16;
  float *const b17 = (float *)(call->arena + 1536); (void)b17;
  float *const b18 = (float *)(call->arena + 512); (void)b18;
  float *const b19 = (float *)(call->arena + 1024); (void)b19;
  float *const b20 = (float *)call->buffers[16]; (void)b20;
  float *const b21 = (float *)(call->work + id*call->work_bytes + 0); (void)b21;
  float *const b22 = (float *)(call->work + id*call->work_bytes + 0); (void)b22;
  float *const b23 = (float *)(call->work + id*call->work_bytes + 0); (void)b23;
  float *const b24 = (float *)(call->work + id*call->work_bytes + 0); (void)b24;
  float *const b25 = (float *)(call->work + id*call->work_bytes + 0); (void)b25;
  float *const b26 = (float *)(call->work + id*call->work_bytes + 0); (void)b26;
  ws_own(d0, 1, id, threads, &lo, &hi); if (lo < hi) ws_k0(call, lo, hi, b3, b0, b2, b16, b21);
  ws_own(d0, 1, id, threads, &lo, &hi); if (lo < hi) ws_k1(call, lo, hi, b5, b16, b4, b15, b22);
  ws_own(d0, 1, id, threads, &lo, &hi); if (lo < hi) ws_k2(call, lo, hi, b1, b15, b23, b18, b17);
  ws_own(d0, 1, id, threads, &lo, &hi); if (lo < hi) ws_k3(call, lo, hi, b16, b18, b20, b19, b24);
  call->api->barrier();  /* region 1 */
  lo = hi = 0; if (id == 0) ws_k4(call, lo, hi, b17, b14);
  ws_own(20, 16, id, threads, &lo, &hi); if (lo < hi) ws_k5(call, lo, hi, b6, b7, b2, b0, b19, b25);
  ws_own(16, 16, id, threads, &lo, &hi); if (lo < hi) ws_k6(call, lo, hi, b19, b8, b9, b3);
  ws_own(16, 16, id, threads, &lo, &hi); if (lo < hi) ws_k7(call, lo, hi, b10, b11, b4, b16, b18, b20, b26);
  ws_own(3, 16, id, threads, &lo, &hi); if (lo < hi) ws_k8(call, lo, hi, b18, b12, b13, b5);
}
