/* The message transport of a group: three functions, of MPI or of group_sockets.c, with the signatures of MPI_Isend,
   MPI_Irecv and MPI_Test.  They return 0, a positive error code of MPI, or a negative errno of group_sockets.c; a negative
   error of magnitude 256 or more also contains 1 + the number of the rank that caused it, shifted left by 8. */
#ifndef WS_GROUP_MESSAGES_H
#define WS_GROUP_MESSAGES_H
#include <stdint.h>

/* MPI handles are integers or pointers, depending on the library; both are passed in a register.  A request is a union
   that has room for both. */
typedef uintptr_t handle;
typedef union { handle value; long cell; } request;
typedef struct {
  int (*isend)(const void *, int count, handle type, int to, int tag, handle comm, request *);
  int (*irecv)(void *, int count, handle type, int from, int tag, handle comm, request *);
  int (*test)(request *, int *done, void *status);
  handle comm, byte;
} messages;
#endif
