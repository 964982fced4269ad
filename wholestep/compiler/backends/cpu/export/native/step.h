/* A training step: it updates, evaluates and predicts inside one block of memory that the caller provides.

   Nothing is allocated and no thread is started.  `block` is WS_BYTES bytes, aligned to 64.  Results below 0 are error
   codes, which `ws_error` explains.  manifest.json lists inputs, outputs, scalars, states and metrics by number; the
   constants for these numbers are at the end of this file. */
#ifndef WS_STEP_H
#define WS_STEP_H
#ifdef __cplusplus
extern "C" {
#endif

@SIZES@

enum { WS_NOT_BOUND = -1, WS_BAD_NUMBER = -2, WS_BAD_INDEX = -3, WS_BAD_FILE = -4, WS_BAD_TENSOR = -5, WS_BAD_COUNTS = -6 };
enum { WS_TRAINING, WS_EVALUATION };                  /* for ws_metric */
enum { WS_STEPS, WS_EPOCHS };                         /* for ws_counter */

long ws_bytes(void);                                  /* WS_BYTES */
int ws_init(void *block);                             /* states and counters are zero, scalars have their defaults */

/* Rows of a data set for input number `input`: dense, row after row.  They are read in place while they are bound. */
int ws_bind(void *block, int input, const void *array);
long ws_row_bytes(int input);                         /* 0: the input has no rows; every update reads all of it */

/* At most `steps` updates of the current epoch over `rows` bound rows, `batch` rows each (0: WS_BATCH); the last batch
   may have fewer.  `position` is the number of rows of the epoch already processed; at 0 an epoch begins.  Returns the
   number of updates, and writes the loss of each to `losses`.  It ends early after an update that was refused. */
long ws_run(void *block, long rows, long batch, int shuffle, long position, long steps, double *losses);
int ws_update(void *block, long rows);                  /* one update by the first `rows` bound rows */
int ws_refused(const void *block);                    /* was the last update refused, because a value is not finite? */

int ws_evaluate(void *block, long rows);              /* loss and metrics of any number of bound rows */
double ws_loss(const void *block);                    /* of the last update or evaluation */
double ws_metric(const void *block, int entry, int metric); /* NaN: nothing counted, or no closed form in C */

int ws_predict(void *block, long rows);               /* outputs of the first `rows` bound rows, at most WS_PREDICT_BATCH */
int ws_read_output(const void *block, int output, void *to); /* of the last ws_predict: dense, row after row */
long ws_output_bytes(const void *block, int output);  /* how many bytes ws_read_output writes */

double ws_get_scalar(const void *block, int scalar);
int ws_set_scalar(void *block, int scalar, double value);
int ws_read_state(const void *block, int state, void *to); /* dense, row after row */
int ws_write_state(void *block, int state, const void *from);
double ws_counter(const void *block, int counter);

/* A checkpoint is a safetensors file of WS_CHECKPOINT_BYTES bytes: states, counters and scalars, as
   `session.state_dict()` in Python returns them.  `ws_load` reads those that the file contains, and returns their
   number. */
long ws_checkpoint_bytes(void);
int ws_save(const void *block, void *file);
int ws_load(void *block, const void *file, long bytes);

const char *ws_error(int code);                       /* the error as a sentence */

@NAMES@

#ifdef __cplusplus
}
#endif
#endif
