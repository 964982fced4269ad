/* An operand of a routine that a plan calls: element (i, j, k) is at `at` + i*step[0] + j*step[1] + k*step[2], but along
   the last axis the steps are those of a panel of 16, and the next panel begins `panel` after it. */
#ifndef WS_VIEW_H
#define WS_VIEW_H
typedef struct { void *at; long step[4], panel; } ws_view;
#endif
