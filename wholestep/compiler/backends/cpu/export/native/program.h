/* The records of an exported step, defined in tables.h: the offsets of programs and tensors in the block.

   Offsets are in bytes from the start of the block; tensors are identified by their numbers in step.h. */
#ifndef WS_PROGRAM_H
#define WS_PROGRAM_H
#include "runtime.h"

enum { WS_IN_BLOCK, WS_IN_INPUT, WS_IN_TABLES };

/* The memory of a buffer: at an offset in the block, a bound input, or constant data. */
typedef struct { int from; long offset; int input; const void *data; } ws_place;

/* The value of a program's runtime scalar: the value of scalar number n, or one of these. */
enum { WS_SCALAR_STEP = -1, WS_SCALAR_EPOCH = -2, WS_SCALAR_START = -3 };  /* WS_SCALAR_START - n: step - counts[n] */

/* One plan.  Dimensions that it does not have are -1. */
typedef struct {
  ws_prologue_fn prologue;
  ws_entry_fn entry;
  void (*refresh)(const ws_call *);
  int number;                                         /* among all programs */
  int place_count, dim_count, scalar_count, input_count, once;
  const ws_place *places;
  const long *dims;                                   /* sizes at capacity */
  const int *scalars;
  const int *inputs;                                  /* those that are read row by row */
  const int *slots;                                   /* the indices of their pointers among the buffers */
  int batch_dim, first_dim, rows_dim, parts_dim, own_dim, whole_dim;
  long call, buffers, sizes, values, derived, work;   /* offsets of its arguments and its workspace */
} ws_program;

/* Programs that run in order: each once per part of the rows, but a program with `once` only at the end. */
typedef struct {
  const ws_program *programs;
  int program_count;
  long batch, part, least;                            /* most rows of a call, rows of a part, fewest rows of a part */
  int is_fixed;                                       /* must every call have `batch` rows? */
  long loss, refused;                                 /* offsets of these outputs; refused: or -1 */
  int loss_is_double, stops;
} ws_entry_point;

/* A tensor in the block: a state or an output of ws_predict.  `rows` is -1 if it is the number of rows of the batch. */
typedef struct {
  long offset, lead, rows, columns;                   /* `lead` matrices of rows x columns, as stored */
  int bytes, kind, panels, transposed;                /* bytes of an element; are matrices in panels of 16 columns? */
} ws_tensor;

enum { WS_FLOAT, WS_DOUBLE, WS_INT32, WS_INT64, WS_BYTE, WS_OTHER };

typedef struct { long row_bytes, staging; int has_rows; int index_bytes; uint64_t below, excused; long elements; } ws_input_info;
typedef struct { int state; double value; } ws_fill;
typedef struct { int numerator, denominator, root; } ws_ratio;  /* numbers of states; -1: no closed form */

enum { WS_FILE_STATE, WS_FILE_STEP, WS_FILE_EPOCH, WS_FILE_COUNT, WS_FILE_SCALAR };
typedef struct { const char *name, *dtype, *shape; int kind, number; long bytes; } ws_file_tensor;
#endif
