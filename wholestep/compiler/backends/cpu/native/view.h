/* A strided operand of a native routine: element (i, j, k) is at `at` + i*step[0] + j*step[1] + k*step[2].  If the last axis
   is stored in panels of 16, its stride holds within a panel, and the next panel begins `panel` elements later. */
#ifndef WS_VIEW_H
#define WS_VIEW_H
typedef struct { void *at; long step[4], panel; } ws_view;
#endif
