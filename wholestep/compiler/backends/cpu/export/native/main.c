/* An example: train, evaluate and predict with an exported step.

     train weights.safetensors EPOCHS trained.safetensors x.bin labels.bin ...

   The files after the first three hold the rows of each input, in the order of manifest.json, as raw numbers. */
#include "step.h"
#include <stdio.h>
#include <stdlib.h>

static _Alignas(64) char block[WS_BYTES];             /* the only memory that the step uses */

static void *read_whole(const char *path, long *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) { perror(path); exit(1); }
  *bytes = ftell(file);
  rewind(file);
  void *data = malloc((size_t)*bytes + 1);
  if (!data || fread(data, 1, (size_t)*bytes, file) != (size_t)*bytes) { perror(path); exit(1); }
  fclose(file);
  return data;
}

static long need(long result) {
  if (result < 0) { fprintf(stderr, "error: %s\n", ws_error((int)result)); exit(1); }
  return result;
}

int main(int count, char **arguments) {
  if (count != 4 + WS_INPUTS) {
    fprintf(stderr, "usage: %s weights.safetensors EPOCHS trained.safetensors, then a file for each of %d inputs\n",
            arguments[0], WS_INPUTS);
    return 1;
  }
  long bytes, rows = 0;
  const long epochs = strtol(arguments[2], NULL, 10);
  need(ws_init(block));
  void *weights = read_whole(arguments[1], &bytes);
  printf("%ld tensors read\n", need(ws_load(block, weights, bytes)));
  free(weights);
  for (int i = 0; i < WS_INPUTS; i++) {
    need(ws_bind(block, i, read_whole(arguments[4 + i], &bytes)));
    if (ws_row_bytes(i)) rows = bytes / ws_row_bytes(i);
  }
#if WS_BATCH
  double *losses = malloc((size_t)rows * sizeof(double));
  for (long epoch = 0; epoch < epochs; epoch++) {
    const long updates = need(ws_run(block, rows, 0, 1, 0, rows, losses));
    for (long i = 0; i < updates; i++) printf("loss %.17g\n", losses[i]);
    if (ws_refused(block)) { fprintf(stderr, "error: the loss is not finite\n"); return 1; }
  }
  free(losses);
#endif
  if (!ws_evaluate(block, rows)) {
    printf("evaluation %.17g", ws_loss(block));
    for (int i = 0; i < WS_METRICS; i++) printf(" %.17g", ws_metric(block, WS_EVALUATION, i));
    printf("\n");
  }
#if WS_OUTPUTS
  need(ws_predict(block, rows < WS_PREDICT_BATCH ? rows : WS_PREDICT_BATCH));
  float *output = malloc((size_t)ws_output_bytes(block, 0));
  need(ws_read_output(block, 0, output));
  printf("output %.9g\n", (double)output[0]);          /* of a float32 output */
  free(output);
#endif
  char *file = malloc(WS_CHECKPOINT_BYTES);
  FILE *to = fopen(arguments[3], "wb");
  if (!to || ws_save(block, file) || fwrite(file, 1, WS_CHECKPOINT_BYTES, to) != WS_CHECKPOINT_BYTES) {
    perror(arguments[3]);
    return 1;
  }
  free(file);
  return fclose(to) != 0;
}
