/* Half-precision copy of a float32 state (mixed-precision training): one grid-stride thread per element, rounded to
   nearest even. */
extern "C" __global__ void __launch_bounds__(256) ws_round(const float *state, ws_half *copy, long long count, int is_bf16) {
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < count; i += (long long)gridDim.x * 256)
    copy[i] = is_bf16 ? ws_to_bf16(state[i]) : ws_to_f16(state[i]);
}
