#ifndef WS_MATH_H
#define WS_MATH_H
#endif
